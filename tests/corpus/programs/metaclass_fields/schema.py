from fields import Field, Message


class Dense(Message):
    units = Field("i")
    scale = Field("f", default=1.0)
    bias = Field("f", default=0.0)
