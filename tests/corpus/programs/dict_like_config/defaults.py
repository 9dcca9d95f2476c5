from config import Config

cfg = Config(name="default", model=Config(layers=2, width=16), train=Config(steps=10))
