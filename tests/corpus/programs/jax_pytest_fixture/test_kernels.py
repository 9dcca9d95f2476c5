import numpy as np

X = np.array([[0, 0], [1, 0], [0, 2], [3, 1]], np.float32)


def test_symmetric(compiled):
    k = np.asarray(compiled(X))
    np.testing.assert_allclose(k, k.T)
    assert np.allclose(np.diag(k), 1)


def test_values(compiled):
    k = np.asarray(compiled(X))
    print()
    print("RESULT", np.round(k[0], 4).tolist())
