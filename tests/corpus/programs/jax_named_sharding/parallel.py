"""The mesh of the whole program, made once at import."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.asarray(jax.devices()[:1]).reshape(1), ("batch",))
replicated = NamedSharding(mesh, PartitionSpec())
by_batch = NamedSharding(mesh, PartitionSpec("batch"))
