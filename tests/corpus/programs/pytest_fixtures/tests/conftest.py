import pytest


@pytest.fixture
def program():
    return ["+", "*"]


@pytest.fixture(scope="session")
def short():
    return ["*"]
