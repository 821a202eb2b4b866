"""The wheel: one name, and nothing of the working directory takes a room's place."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.stratamq.installed_wheel import ROOMS, Environment, build_wheel, names_in

WHERE = "import stratamq.cli.main, jobs, wire; print(jobs.__file__, wire.__file__)"


def test_a_wheel_has_one_name(tmp_path: Path) -> None:
    """All rooms lie below it, where the command finds them first, whatever lies in the working directory."""
    wheel = build_wheel(tmp_path, compiled=False)
    names = names_in(wheel)
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"stratamq"}
    rooms = {name.split("/")[2] for name in names if name.startswith("stratamq/_rooms/")}
    assert rooms == set(ROOMS)
    assert not [name for name in names if name.endswith(".c")]
    assert any("_rooms/storage/store/_lsm_vfs." in name and name.endswith(".so") for name in names)
    environment = Environment(tmp_path, wheel)
    assert environment.run("version").startswith("stratamq ")
    shown = environment.run_any(str(environment.bin / "python"), "-P", "-c", WHERE)
    assert shown.count("/stratamq/_rooms/") == 2, shown
    environment.run("jobs", "bundle", "jobs.zip")
    bundled = set(names_in(environment.folder / "jobs.zip"))
    assert {"jobs/compact.py", "jobs/report_page.html", "wire/sstable/schema.py"} <= bundled


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="java is missing: apt install openjdk-17-jre-headless")
def test_an_installed_wheel_among_decoys(tmp_path: Path) -> None:
    """NIST: protect. `up`, a publish, an export and a Spark job, from an environment without a compiler."""
    environment = Environment(tmp_path, build_wheel(tmp_path, compiled=True))
    data = tmp_path / "data"
    process = environment.popen("up", "--data", str(data), "--tls-port", "0", "--edges", "1", "--no-admin")
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("  mosquitto_pub"):
                break
        assert lines[0].startswith("StrataMQ is ready after"), lines
        if shutil.which("mosquitto_pub") is not None:
            port = lines[-1].split(" -p ")[1].split()[0]
            edge = ("-h", "localhost", "-p", port, "--cafile", str(data / "tls" / "ca.pem"))
            environment.run_any("mosquitto_sub", *edge, "-t", "a/#", "-q", "1", "-i", "s", "-c", "-E")
            environment.run_any("mosquitto_pub", *edge, "-t", "a/b", "-m", "Hello", "-q", "1")
        exported = data / "exports" / "runs"
        environment.run("store", "export", "--data", str(data), "--output", str(exported))
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    environment.run("jobs", "compact", "--input", str(exported), "--output", str(tmp_path / "out"), timeout_s=600)
    environment.run("jobs", "audit", "--input", str(tmp_path / "out"), timeout_s=600)
