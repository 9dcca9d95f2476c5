class Session:
    _instance = None

    def __init__(self, device):
        self.device = device
        self.precision = "fp32"
        self.compiled = 0

    @classmethod
    def get_instance(cls, device="cpu"):
        if cls._instance is None:
            cls._instance = cls(device)
        return cls._instance

    def target(self, name):
        return f"{self.device}/{self.precision}/{name}"
