"""Datasets themselves: create, list, describe, drop."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from siltstone.cli import render
from siltstone.cli.invocation import confirm, invocation
from siltstone.cli.registration import add
from siltstone.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from siltstone.model.results import DatasetInfo

Name = Annotated[str, typer.Argument(metavar="NAME", help="catalog.schema.table")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    add(app, "create", create)
    add(app, "list", list_datasets)
    add(app, "describe", describe)
    add(app, "drop", drop)


def create(
    context: typer.Context,
    name: Name,
    *,
    key: Annotated[str, typer.Option("--key", metavar="A,B", help="The columns that identify a row.")],
    schema: Annotated[str | None, typer.Option("--schema", metavar="DDL", help="The columns in Spark's words.")] = None,
    like: Annotated[
        Path | None, typer.Option("--like", metavar="FILE", help="Take the columns of a Parquet or CSV file.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="A,B", help="Columns that identify a person; kept out of logs.")
    ] = None,
) -> None:
    r"""Create a dataset. One that is there already and the same is left as it is.

    \b
    silt create crm.sales.candidates --key candidate_id --subject candidate_id \
        --schema 'candidate_id STRING, name STRING, score DOUBLE, at TIMESTAMP'
    silt create crm.sales.calls --key call_id --like calls.parquet
    """
    call = invocation(context)
    if (schema is None) == (like is None):
        raise InvalidRequest("Pass the columns as --schema DDL, or --like FILE; one of the two.")
    with call.open() as lake:
        columns = schema if schema is not None else schema_of(like) if like is not None else ""
        made = lake.create(name, columns, key=_names(key), subject=_names(subject or ""))
        info = made.info()
        call.answer(
            info.to_dict(), lambda: render.write_line(f"Dataset {info.name} is there, key {', '.join(info.key)}.")
        )


def list_datasets(context: typer.Context) -> None:
    r"""List the datasets of the lake.

    \b
    silt list
    silt list --json
    """
    call = invocation(context)
    with call.open() as lake:
        found = lake.datasets()

    def people() -> None:
        try:
            lake.require()
        except NotFound as note:  # nothing is wrong with an empty list, but perhaps with the path
            render.write_note(str(note))
            return
        if not found:
            render.write_line(f"No datasets in lake {lake.path}.")
            return
        render.write_table(
            ["dataset", "kind", "key", "subject", "columns", "created at"],
            [[i.name, i.kind, ", ".join(i.key), ", ".join(i.subject), len(i.columns), i.created_at] for i in found],
            numbers=["columns"],
        )

    call.answer([info.to_dict() for info in found], people)


def describe(context: typer.Context, name: Name) -> None:
    r"""Show what a dataset is: columns, key, subject, fingerprint, where it lies.

    \b
    silt describe crm.sales.candidates
    """
    call = invocation(context)
    with call.open() as lake:
        dataset = lake.dataset(name)
        info, path = dataset.info(), str(dataset.path)
    call.answer({**info.to_dict(), "path": path}, lambda: _show_info(info, path))


def _show_info(info: "DatasetInfo", path: str) -> None:
    render.write_facts(
        {
            "dataset": info.name,
            "kind": info.kind,
            "key": ", ".join(info.key),
            "subject": ", ".join(info.subject) or None,
            "fingerprint": info.fingerprint,
            "created at": info.created_at,
            "path": path,
        }
    )
    rows = [[c["name"], c["type"], "" if c["nullable"] else "not null"] for c in info.columns]
    render.write_table(["column", "type", ""], rows)


def drop(
    context: typer.Context,
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and change nothing.")] = False,
) -> None:
    r"""Drop a dataset and delete its files. There is no way back.

    \b
    silt drop crm.sales.calls --dry-run
    silt drop crm.sales.calls --yes
    """
    call = invocation(context)
    with call.open() as lake:
        dataset = lake.dataset(name)
        status = dataset.status()
        rows = status.rows_in_base + status.backlog_rows
        size = status.base_bytes + status.backlog_bytes + status.unreferenced_bytes
        what = f"{name}: {render.counted(rows, 'row')} in base and changes, {render.size(size)}, at {dataset.path}"
        if not dry_run:
            confirm(f"Drop {what}?", yes=yes)
            lake.drop(name)
    call.answer(
        {"dataset": name, "dropped": not dry_run, "dry_run": dry_run, "rows": rows, "bytes": size},
        lambda: render.write_line(f"{'Would drop' if dry_run else 'Dropped'} {what}."),
    )


def schema_of(file: Path) -> "pa.Schema":
    """Return the columns of a Parquet file, or of a CSV file as its first rows suggest.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it is neither, or cannot be read.
    """
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    if not file.is_file():
        raise NotFound(f"There is no file {file}.")
    try:
        match file.suffix.lower():
            case ".parquet" | ".pq":
                return pq.read_schema(file).remove_metadata()
            case ".csv":
                with pc.open_csv(file) as reader:
                    return reader.schema
            case _:
                raise InvalidRequest(f"{file}: columns can be taken from a .parquet or a .csv file.")
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"{file} cannot be read: {str(error).rstrip('.')}.") from error


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
