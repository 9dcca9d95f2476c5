"""Which of two nnx models is larger, and what do they compile to?"""

from zoo import build
from zoo.stages import flat_text, parameter_table

for name in ("mlp", "conv"):
    table = parameter_table(name)
    print("RESULT", name, sum(table.values()), sorted(table)[0])
    text = flat_text(name)
    print("RESULT", name, text.count("stablehlo.convolution"), text.count("stablehlo.dot_general"), len(text))

print("RESULT", type(build("mlp")).__name__)
