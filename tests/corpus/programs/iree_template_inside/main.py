import numpy as np

import cachec
from kernels import compile_kernel, render

for shape in [(3,), (2, 2)]:
    source = render("scale", shape)
    print("RESULT", len(source.split()), source.splitlines()[0].strip())
    run = cachec.link(compile_kernel(source), cachec.WeightSet.from_arrays({}))
    print("RESULT", np.asarray(run(-np.ones(shape, np.float32))).tolist())
