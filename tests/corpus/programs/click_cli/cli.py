from dataclasses import dataclass

import click

import cachec

cache = cachec.Cache()


@dataclass
class State:
    verbose: bool = False


@cache.stage
def lower_names(names, width, prefix):
    return [f"{prefix}{name}x{width}" for name in names]


@click.group()
@click.option("--verbose", is_flag=True)
@click.pass_context
def main(context, verbose):
    context.obj = State(verbose)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--width", type=int, default=4)
@click.option("--prefix", default="%")
@click.pass_obj
def lower(state, names, width, prefix):
    """Lower some names."""
    if state.verbose:
        click.echo(f"lowering {len(names)} names", err=True)
    click.echo(f"RESULT {lower_names(names, width, prefix)}")


@main.command()
def version():
    click.echo("1")


if __name__ == "__main__":
    main()
