from pathlib import Path

import jinja2
import yaml

import cachec

HERE = Path(__file__).parent
cache = cachec.Cache()


def ctype(value):
    return value.upper()


env = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE / "templates"), trim_blocks=True)
env.filters["ctype"] = ctype


def load_config():
    with open(HERE / "config.yaml") as file:
        return yaml.safe_load(file)


@cache.stage
def render(name, config):
    template = env.get_template(name)
    return template.render(**config)


if __name__ == "__main__":
    config = load_config()
    for kernel in config.pop("kernels"):
        print("RESULT", repr(render(kernel + ".c.j2", config)))
