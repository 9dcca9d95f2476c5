import struct


class Field:
    def __init__(self, code, default=0):
        self.code, self.default = code, default

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner):
        if instance is None:
            return self
        return instance.__dict__.get(self.name, self.default)

    def __set__(self, instance, value):
        instance.__dict__[self.name] = value


class MessageMeta(type):
    def __new__(mcs, name, bases, namespace):
        cls = super().__new__(mcs, name, bases, namespace)
        cls.fields = [value for value in namespace.values() if isinstance(value, Field)]
        cls.format = "<" + "".join(field.code for field in cls.fields)
        return cls


class Message(metaclass=MessageMeta):
    def __init__(self, **values):
        for name, value in values.items():
            setattr(self, name, value)

    def pack(self):
        return struct.pack(self.format, *(getattr(self, field.name) for field in self.fields))
