"""What a call depends on: named parts, and the key over them."""
