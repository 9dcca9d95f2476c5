from ir.types import Tensor
from ir.ops import Op
