import patches
from stages import total

if __name__ == "__main__":
    print("RESULT", total(["conv", "relu"]))
