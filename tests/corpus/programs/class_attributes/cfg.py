class Base:
    ACT = "relu"


class Model(Base):
    WIDTH = 32
    DEPTH = 3


class Train:
    LR = 0.1
    STEPS = 5
