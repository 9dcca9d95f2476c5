"""``cachec warm``: compile declared targets before anybody waits for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

import click

from cachec import config, report
from cachec.base.display_text import number_of
from cachec.cli.session import Session, clean, json_option, pass_session, print_as_json
from cachec.errors import CachecError, UsageError
from cachec.warm import DeclaredTargets, Row, Status, Summary, Warmer, load, select, shard
from cachec.warm.rows import parse_shard

#: Exit code after Ctrl-C: 128 and the number of SIGINT.
INTERRUPTED = 130


@click.command("warm")
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--jobs", "-j", type=click.IntRange(1), metavar="N", help="Rows at a time; by default one a processor.")
@click.option("--shard", "share", metavar="K/N", help="Only the K-th of N shares, for N machines.")
@click.option("--check", is_flag=True, help="Compile nothing; exit with 1 and the reasons when something would miss.")
@click.option("--materialize", is_flag=True, help="Put in place what commands write, also where they hit.")
@click.option("--executor", "cluster", metavar="URL", help="Run rows on a Dask cluster: dask://host:port.")
@click.option("--changed-since", metavar="REV", help="Only targets touched by what git says changed since REV.")
@click.option(
    "--touched", is_flag=True, help="Take TARGET as changed files (pre-commit): only targets touched by them."
)
@click.option("--summary", "summary_file", metavar="FILE", help="Append the summary to FILE, as Markdown.")
@click.option("--restore", metavar="BUNDLE", help="First add the entries of BUNDLE; go on without where it is bad.")
@click.option("--save", metavar="BUNDLE", help="At the end write the entries that this run used to BUNDLE.")
@click.option("--save-limit", default="0", metavar="SIZE", help="Size of BUNDLE, such as 2GiB; 0: no limit.")
@click.option("--used", multiple=True, metavar="FILE", help="Save what this CACHEC_STATS_FILE names, too.")
@click.option("--list", "only_list", is_flag=True, help="Name the rows, and run nothing.")
@json_option
@pass_session
def command(
    session: Session,
    targets: tuple[str, ...],
    jobs: int | None,
    share: str | None,
    check: bool,
    materialize: bool,
    cluster: str | None,
    changed_since: str | None,
    touched: bool,
    summary_file: str | None,
    restore: str | None,
    save: str | None,
    save_limit: str,
    used: tuple[str, ...],
    only_list: bool,
) -> None:
    """Run the declared targets that would miss, in dependency order, in parallel workers.

    A TARGET is a name from [tool.cachec.warm.targets] (or [warm.targets] in cachec.toml), one row of its matrix
    such as "minilm[batch=1]", or a pattern such as "minilm*"; all by default, each with what it comes after. One
    failure does not stop the others; Ctrl-C stops and keeps what is done. A row that is looked at is run in mode
    `require` up to its first miss.

    \b
    Examples:
      cachec warm
      cachec warm minilm --jobs 2
      cachec warm --materialize               on a fresh checkout: outputs of commands are there afterwards
      cachec warm --executor dask://host:8786 --materialize      compiled on a cluster, fetched to here
      cachec warm --check                     exit 1 and the reasons when something would miss
      cachec warm --changed-since origin/main
      cachec warm --shard 3/8 --summary "$GITHUB_STEP_SUMMARY"

    \b
    JSON: {"check", "hit", "compiled", "would_miss", "failed", "skipped", "cancelled", "seconds", "seconds_spent",
           "seconds_saved", "estimate", "targets": [{"target", "status", "seconds", "seconds_saved", "error",
           "calls": [{"stage", "reason", "detail", "key", "seconds"}]}]}

    Exit codes: 0 all is warm, 1 something would miss (--check), 2 something failed or wrong use, 130 interrupted.
    """
    limit = _limit(save_limit)
    if check and materialize:
        raise UsageError("--check writes nothing, so there is nothing to --materialize; leave one of them out")
    declared = load()
    if restore is not None:
        _restore(session, restore)
    bare = (save is not None or restore is not None) and not targets  # a job may use the cache without targets
    rows = _choose_rows(declared, targets, share, changed_since, touched=touched, bare=bare)
    if only_list:
        _list(rows)
        return
    with _executor(cluster, declared, session.settings) as executor:
        there = materialize and executor is None
        summary, code = _warm(session.settings, rows, declared, jobs, executor, check=check, materialize=there)
    if materialize and cluster and not code:  # what the cluster compiled is at the remotes: all of it hits
        summary, code = _warm(session.settings, rows, declared, jobs, None, check=False, materialize=True)
    if summary_file:
        with Path(summary_file).open("a", encoding="utf-8") as out:
            out.write(summary.markdown())
    if not print_as_json(summary.data()):
        _print(summary)
    if save is not None:
        _save(session, summary, used, save, limit)
    click.get_current_context().exit(code)


def _choose_rows(
    declared: DeclaredTargets,
    targets: tuple[str, ...],
    share: str | None,
    changed_since: str | None,
    *,
    touched: bool,
    bare: bool,
) -> list[Row]:
    if not declared.rows and not bare:
        raise UsageError(
            'no targets are declared: write [tool.cachec.warm.targets.NAME] with call = "module:function" into '
            "pyproject.toml, or [warm.targets.NAME] into cachec.toml"
        )
    rows = list(declared.rows) if touched else select(declared.rows, targets)
    if touched or changed_since is not None:
        from cachec.warm import changes

        changed = [os.path.abspath(each) for each in targets] if touched else []
        if changed_since is not None:
            changed += changes.changed_files(os.path.dirname(declared.path), changed_since)
        rows = changes.rows_touched(rows, changed, declared.path)
    if share is not None:
        rows = shard(rows, *parse_shard(share))
    return rows


def _limit(text: str) -> int:
    try:
        return config.parse_size(text)
    except ValueError:
        raise UsageError(f"--save-limit {text!r}: give a number of bytes, or a size such as 500MB or 2GiB") from None


def _restore(session: Session, path: str) -> None:
    """Restore a bundle. An unusable one only costs the time to compile: it is reported, and the job continues."""
    from cachec import bundle

    try:
        added = bundle.add(session.store, path)
    except FileNotFoundError:
        click.echo(f"cachec: no bundle {clean(path)} yet", err=True)
    except (CachecError, OSError) as error:
        click.echo(f"cachec: nothing is restored: {clean(str(error))}", err=True)
    else:
        click.echo(f"cachec: {number_of(added.entries, 'entry')} restored from {clean(path)}", err=True)


def _save(session: Session, summary: Summary, used: tuple[str, ...], path: str, limit: int) -> None:
    from cachec import bundle
    from cachec.events import read_outcomes

    outcomes = [outcome for result in summary.results for outcome in result.outcomes]
    for file in used:
        outcomes += read_outcomes(file)
    keys = [outcome.key for outcome in outcomes if outcome.key and (outcome.hit or outcome.stored)]
    saved = bundle.create(session.store, keys, path, max_size=limit)
    omitted = f", {saved.left_out} left out by the limit" if saved.left_out else ""
    click.echo(
        f"cachec: {number_of(saved.entries, 'entry')} saved to {clean(path)}, {report.size(saved.size)}{omitted}",
        err=True,
    )


def _list(rows: list[Row]) -> None:
    if print_as_json({"targets": [row.id for row in rows]}):
        return
    for row in rows:
        click.echo(clean(row.id))


@contextmanager
def _executor(url: str | None, declared: DeclaredTargets, settings: config.Settings) -> Iterator[Executor | None]:
    """The cluster that is meant, or None for workers here."""
    if url is None:
        yield None
        return
    from cachec.warm.cluster import SCHEME, Cluster

    if not url.startswith(SCHEME) or url == SCHEME:
        raise UsageError(f"--executor {url!r}: expected {SCHEME}host:port")
    cluster = Cluster(url, os.path.dirname(declared.path) or os.getcwd(), settings)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def _warm(
    settings: config.Settings,
    rows: list[Row],
    declared: DeclaredTargets,
    jobs: int | None,
    executor: Executor | None,
    *,
    check: bool,
    materialize: bool,
) -> tuple[Summary, int]:
    from cachec.cli.warm_progress import progress

    with progress(sys.stderr) as listener:
        warmer = Warmer(
            rows,
            check=check,
            materialize=materialize,
            jobs=jobs or (declared.jobs if executor is None else None),
            executor=executor,
            settings=settings,
            listener=listener,
            source=declared.path,
        )
        try:
            summary = warmer.run()
            code = summary.exit_code
        except KeyboardInterrupt:
            summary, code = warmer.summary(), INTERRUPTED
    if warmer.fault is not None:
        click.echo(f"cachec: the figures of this run are not kept: {warmer.fault}", err=True)
    return summary, code


def _print(summary: Summary) -> None:
    for result in summary.results:
        if result.status in {Status.FAILED, Status.WOULD_MISS} and sys.stderr.isatty():
            click.echo(f"{result.status.value} {clean(result.id)}: {clean(result.why())}")
        if result.output:
            click.echo(f"--- what {clean(result.id)} printed")
            for line in result.output.splitlines():
                click.echo(f"  {clean(line)}")
    click.echo(summary.line())
