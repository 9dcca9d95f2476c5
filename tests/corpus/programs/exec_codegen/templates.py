CLAMP = """
def clamp(x):
    return max(x, {low})
"""
