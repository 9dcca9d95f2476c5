import torch


class _HardSign(torch.autograd.Function):
    width = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < _HardSign.width) * surrogate_slope(x)


def surrogate(x):
    return torch.tanh(2 * x)


def surrogate_slope(x):
    return 2 * (1 - surrogate(x) ** 2)


hard_sign = _HardSign.apply
