import torch

import cachec
import kernels

cache = cachec.Cache()


@cache.stage(tools=["torch"])
def gram(points: int, kernel: str) -> tuple[str, float]:
    x = torch.linspace(0, 1, points)
    k = getattr(kernels, kernel)(x[:, None], x[None])
    return str(k.dtype), round(float(torch.linalg.cholesky(k + kernels.JITTER * torch.eye(points)).diagonal().log().sum()), 5)


def main():
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    for kernel in ("rbf", "matern"):
        print("RESULT", kernel, gram(4, kernel))


if __name__ == "__main__":
    main()
