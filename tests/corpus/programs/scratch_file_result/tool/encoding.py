def word(code, value):
    return bytes([code]) + value.to_bytes(2, "big")
