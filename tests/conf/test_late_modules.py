"""Lazily loaded modules."""

import subprocess
import sys
from pathlib import Path


def test_import_late_loads_module_at_first_attribute(tmp_path: Path) -> None:
    """``import`` executes no code of it; afterwards the module is complete, and a missing one is an error."""
    (tmp_path / "unused.py").write_text("print('loaded')\nVALUE = 7\n")
    program = (
        "from conf.lazy_modules import import_late\n"
        "import_late('unused', 'nowhere')\n"
        "import unused\n"
        "print('imported')\n"
        "print(unused.VALUE, unused.__name__)\n"
        "try:\n    import nowhere\nexcept ModuleNotFoundError as error:\n    print(error)\n"
    )
    environment = {"PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == ["imported", "loaded", "7 unused", "No module named 'nowhere'"]


def test_the_http_service_loads_no_yaml() -> None:
    """YAML is needed only by an unused format of Litestar."""
    program = (
        "import sys; from stratamq.packages import service_main\n"
        "service_main('admin'); print('yaml.error' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
