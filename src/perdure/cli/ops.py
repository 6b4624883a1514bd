"""`perdure ops export`: prints the files that operations need, to be kept and changed."""

from enum import StrEnum
from importlib.resources import files
from typing import Annotated, Final

import typer

from perdure.cli.output import pour


class OpsFile(StrEnum):
    """What can be exported."""

    PROMETHEUS = "prometheus"
    GRAFANA = "grafana"
    SYSTEMD = "systemd"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"


NAMES: Final = {
    OpsFile.PROMETHEUS: "prometheus.yaml",
    OpsFile.GRAFANA: "grafana.json",
    OpsFile.SYSTEMD: "perdure-worker.service",
    OpsFile.DOCKER: "Dockerfile",
    OpsFile.KUBERNETES: "kubernetes.yaml",
}

ops = typer.Typer(help="Files for operations.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(ops, name="ops")


@ops.callback()
def _group() -> None:
    """Let the only command keep its name."""


@ops.command()
def export(
    what: Annotated[OpsFile, typer.Argument(metavar="FILE", help="Which file; it is printed.")],
) -> None:
    """Print alert rules, a dashboard, a systemd unit, a Dockerfile or Kubernetes manifests."""
    pour(ops_file(what))


def ops_file(what: OpsFile) -> str:
    """Return the text of a file."""
    return files("perdure.observe").joinpath("files", NAMES[what]).read_text("utf-8")
