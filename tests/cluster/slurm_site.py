"""A Slurm of its own for tests: munge, a controller and several nodes on this host, in one folder, on private ports."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from machines import all_pids, read_proc, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
MISSING = [one for one in PROGRAMS if shutil.which(one, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None]
FREEZER = Path("/sys/fs/cgroup/freezer")
"""Where control groups of version 1 freeze processes: what proctrack/cgroup needs here."""
CONTAINED = os.geteuid() == 0 and os.access(FREEZER, os.W_OK)
"""Whether Slurm can follow the processes of a job by control groups."""
KILL_WAIT_S = 15
"""How long a job that is cancelled may take until it is killed."""


class SlurmSite:
    """A running Slurm with `nodes` nodes. `close` ends all of it."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.env["PATH"] = f"{os.path.dirname(sys.executable)}:{self.env['PATH']}:/usr/sbin:/sbin"  # noqa: PTH120
        self._programs: list[subprocess.Popen[bytes]] = []
        ports = _free_ports(nodes + 1)
        self.nodes = [f"fw{port}" for port in ports[1:]]
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir()
        (folder / "munge").chmod(0o700)
        (folder / "slurm.conf").write_text(self._configuration(ports), encoding="ascii")
        (folder / "cgroup.conf").write_text(
            f"CgroupPlugin=cgroup/v1\nCgroupMountpoint={FREEZER.parent}\n", encoding="ascii"
        )
        (folder / "gres.conf").write_text(
            "".join(f"NodeName={node} Name=gpu File={folder}/{node}-[0-1]\n" for node in self.nodes), encoding="ascii"
        )
        for node in self.nodes:
            for gpu in (0, 1):
                (folder / f"{node}-{gpu}").touch()
        try:
            self._start_munge()
            wait_until((folder / "munge" / "socket").exists, "munge to listen")
            self._start("slurmctld", "-D")
            for node in self.nodes:
                self._start("slurmd", "-D", "-N", node)
            wait_until(self._is_idle, "all nodes to be idle")
        except BaseException:
            self.close()
            raise

    def _configuration(self, ports: list[int]) -> str:
        host, user = socket.gethostname().partition(".")[0], pwd.getpwuid(os.geteuid()).pw_name
        nodes = "".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 Gres=gpu:2\n"
            for name, port in zip(self.nodes, ports[1:], strict=True)
        )
        return (
            f"ClusterName=fairway\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={ports[0]}\nSlurmUser={user}\n"
            f"SlurmdUser={user}\nAuthType=auth/munge\nAuthInfo=socket={self.folder}/munge/socket\nCredType=cred/munge\n"
            f"StateSaveLocation={self.folder}/state\nSlurmdSpoolDir={self.folder}/spool/%n\n"
            f"SlurmctldPidFile={self.folder}/slurmctld.pid\nSlurmdPidFile={self.folder}/slurmd-%n.pid\n"
            f"SlurmctldLogFile={self.folder}/slurmctld.log\nSlurmdLogFile={self.folder}/slurmd-%n.log\n"
            f"ProctrackType=proctrack/{'cgroup' if CONTAINED else 'linuxproc'}\nTaskPlugin=task/none\n"
            "GresTypes=gpu\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nMpiDefault=none\nReturnToService=2\n"
            f"KillWait={KILL_WAIT_S}\nSlurmdParameters=config_overrides\nSwitchType=switch/none\n"
            "SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1\n"
            "AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none\n"
            f"{nodes}PartitionName=all Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP\n"
        )

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = {name: str(folder / name) for name in ("socket", "pid-file", "log-file", "seed-file")}
        self._start("munged", "-F", "-f", f"--key-file={key}", *(f"--{name}={path}" for name, path in files.items()))

    def _start(self, *words: str) -> None:
        """Start a program in the foreground, as a child of ours."""
        program = shutil.which(words[0], path=self.env["PATH"])
        with (self.folder / f"{words[0]}-{len(self._programs)}.out").open("wb") as out:
            self._programs.append(
                subprocess.Popen([program or words[0], *words[1:]], env=self.env, stdout=out, stderr=out)
            )

    def _is_idle(self) -> bool:
        told = subprocess.run(["sinfo", "-h", "-o", "%t %D"], env=self.env, capture_output=True, text=True, check=False)
        return told.stdout.split() == ["idle", str(len(self.nodes))]

    def call(self, *words: str) -> str:
        """Run a command of Slurm and return what it writes."""
        done = subprocess.run(words, env=self.env, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def submit(self, script: Path, *options: str) -> str:
        """Submit a script and return the number of its job."""
        return self.call("sbatch", "--parsable", *options, str(script)).strip().partition(";")[0]

    def state(self, job: str) -> str:
        """The state of a job, such as RUNNING."""
        shown = self.call("scontrol", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def processes(self, job: str) -> set[int]:
        """The processes of a job, without Slurm's own: in its control groups, or else by their environment."""
        found = set[int]()
        for node in self.nodes:
            for path in FREEZER.glob(f"slurm_{node}/uid_*/job_{job}/**/cgroup.procs"):
                with suppress(OSError):
                    found |= {int(pid) for pid in path.read_text(encoding="ascii").split()}
        if not CONTAINED:
            marks = {f"SLURM_JOB_ID={job}", f"SLURM_CONF={self.folder}/slurm.conf"}
            found = {pid for pid in all_pids() if marks <= set(read_proc(pid, "environ").split("\0"))}
        return {pid for pid in found if not read_proc(pid, "cmdline").startswith("slurmstepd:")}

    def minutes(self, job: str) -> int:
        """For how many whole minutes a job has run."""
        words = self.call("squeue", "-h", "-j", job, "-o", "%M").strip().replace("-", ":").split(":")
        return sum(int(word) * size for word, size in zip(reversed(words[:-1]), (1, 60, 1440), strict=False))

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until they are gone."""
        self.call("scancel", "--user", str(os.geteuid()))
        wait_until(lambda: not self.call("squeue", "-h").strip(), "jobs to be gone")

    def close(self) -> None:
        """End everything, and leave nothing behind."""
        with suppress(AssertionError, OSError):
            self.cancel_all()
        for program in reversed(self._programs):
            program.terminate()
            try:
                program.wait(5.0)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        for node in self.nodes:
            for group in sorted(FREEZER.glob(f"slurm_{node}/**/"), reverse=True):
                with suppress(OSError):
                    group.rmdir()


def _free_ports(number: int) -> list[int]:
    """Ports that nobody listens on, below the range that the kernel gives to others."""
    found, port = list[int](), 20000 + os.getpid() % 10000
    while len(found) < number:
        port += 1
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
    return found
