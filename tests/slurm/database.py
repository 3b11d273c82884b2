"""The database under slurmdbd: a MariaDB on a socket, for a cluster with accounting.

It asks nobody who they are: its socket lies in a folder that only root can enter. It syncs nothing: it dies with the
cluster and has nothing to lose.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import debian
from tests.waiting import patient


def build_command(mariadbd: Path, folder: Path) -> list[str]:
    """The words that start the server on a folder; its socket is ``folder/socket``."""
    return [
        *_build_common(mariadbd, folder),
        *("--skip-networking", "--skip-grant-tables", f"--socket={folder}/socket", f"--pid-file={folder}/pid"),
        *("--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"),
        "--innodb-lock-wait-timeout=900",  # what slurmdbd asks for
    ]


def make(folder: Path) -> Path:
    """Write the files of an empty server; the path of its program."""
    mariadbd = debian.program("mariadbd", "mariadb-server-core")
    (folder / "data").mkdir(parents=True)
    folder.chmod(0o700)
    tables = _tables(mariadbd)
    both = (tables, tables.with_name(f"{tables.stem}_data.sql"))
    statements = "create database mysql;\nuse mysql;\nset @auth_root_socket=NULL;\n"  # a line each: it reads lines
    done = subprocess.run(
        [*_build_common(mariadbd, folder), "--bootstrap", "--innodb-log-file-size=8M"],
        input=statements + "".join(file.read_text() for file in both),
        env=debian.surroundings(mariadbd),
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(60),
    )
    assert done.returncode == 0, f"MariaDB cannot make its tables:\n{done.stderr[-2000:]}"
    return mariadbd


def _build_common(mariadbd: Path, folder: Path) -> list[str]:
    return [
        *(str(mariadbd), "--no-defaults", "--user=root", f"--datadir={folder}/data", f"--tmpdir={folder}"),
        f"--lc-messages-dir={_tables(mariadbd).parent}",
    ]


def _tables(mariadbd: Path) -> Path:
    """The statements that make its own tables; the folder and the name say mysql or mariadb, by release."""
    found = [*mariadbd.parents[1].glob("share/m*/m*_system_tables.sql")]
    assert found != [], f"beside {mariadbd} there are no system tables: install mariadb-server-core"
    return found[0]
