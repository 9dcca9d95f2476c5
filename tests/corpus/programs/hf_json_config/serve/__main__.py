from serve.compile import classify, graph_size

if __name__ == "__main__":
    print("RESULT", graph_size(5))
    for text in ([3, 1, 4], [2, 7, 1, 8]):
        print("RESULT", text, classify(text))
