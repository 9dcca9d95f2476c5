"""What a compiler made, with the weights of what it was made of: by name, by record, by reference."""
