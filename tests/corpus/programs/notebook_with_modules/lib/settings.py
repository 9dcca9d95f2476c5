scale = 10
unit = "s"
