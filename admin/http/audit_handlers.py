"""The path of audit reports of ``stratamq jobs audit``, in the folder of the setting."""

from pathlib import Path

from litestar import get
from litestar.handlers import HTTPRouteHandler

from access.operators.commands import OperatorRole
from admin.api_rows import told_rows
from admin.audits import AuditPage, read_reports
from admin.http.problems import Problem

__all__ = ["audit_handlers"]


def audit_handlers(folder: Path | None) -> list[HTTPRouteHandler]:
    """Return the handler."""

    @get(
        "/audits",
        opt={"role": OperatorRole.VIEWER},
        summary="Reports of audits",
        operation_id="audits",
        sync_to_thread=True,
    )
    def audits() -> AuditPage:
        if folder is None:
            return AuditPage("", [])
        try:
            return AuditPage(str(folder), told_rows(read_reports(folder)))
        except FileNotFoundError:
            return AuditPage(str(folder), [])
        except OSError as error:
            text = f"admin.audits_dir = {folder} cannot be read: {error.strerror or error}"
            raise Problem(500, "no_folder", text, "make it readable for the service, or set another folder") from None

    return [audits]
