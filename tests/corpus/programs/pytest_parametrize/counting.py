def count(text, letter):
    return text.count(letter)
