"""The plugin's own functions over folders, called where Slurm itself cannot bring about what matters: a race."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.slurm.cluster import SlurmCluster
from tests.slurm.spank import SOURCES, WARNINGS
from tests.waiting import patient

# Between the making of a folder and its opening, who may write to the folder above puts something else in its place.
RACE = """
#define _GNU_SOURCE
#include "moorings_folders.h"

void slurm_error(const char *format, ...) { (void)format; }
void slurm_spank_log(const char *format, ...) { (void)format; }
static const char *victim;

int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode)
{
	int code = __real_mkdir(path, mode);
	if (code == 0 && victim && (rmdir(path) != 0 || symlink(victim, path) != 0))
		_exit(9);
	return code;
}

int main(int argc, char **argv)
{
	victim = argc > 2 ? argv[2] : NULL;
	(void)umask(077);
	return open_base(argv[1], true) < 0 ? 1 : 0;
}
"""


def test_a_link_put_in_a_new_folders_place_changes_no_other_folder(tmp_path: Path, slurm: SlurmCluster) -> None:
    (tmp_path / "race.c").write_text(RACE)
    flags = ["-std=c99", *WARNINGS, "-Wno-unused", "-O2", f"-I{SOURCES}", f"-I{slurm.programs.headers}"]
    words = ["gcc", *flags, "-Wl,--wrap=mkdir", "-o", "race", "race.c"]
    made = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    victim = tmp_path / "victim"
    victim.mkdir(0o700)

    def opened(*arguments: Path) -> bool:
        return subprocess.run([tmp_path / "race", *arguments], check=False, timeout=patient(20)).returncode == 0

    assert opened(tmp_path / "honest")
    assert (tmp_path / "honest").stat().st_mode & 0o7777 == 0o711
    assert not opened(tmp_path / "swapped", victim)
    assert (tmp_path / "swapped").is_symlink()
    assert victim.stat().st_mode & 0o7777 == 0o700
