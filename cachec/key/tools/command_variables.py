"""Which environment variables count for a command, which gets all of them. Imports nothing.

A variable counts where its name is listed; a pattern is a name with ``*`` at the end, which stands for any rest. A
command whose adapter does not list all variables that it obeys is keyed by every variable but ``NEUTRAL``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Variables that say where, for whom and under what a command runs. None of them counts unless it is named.
#:
#: Each group is a line of the table in docs/reference/settings.md.
NEUTRAL_GROUPS = {
    "folders and programs": (
        "PATH",
        "PWD",
        "OLDPWD",
        "TMPDIR",
        "TMP",
        "TEMP",
        "TEMPDIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "XDG_*",
    ),
    "the user and the login": (
        *("HOME", "USER", "LOGNAME", "USERNAME", "MAIL", "HOSTNAME", "SUDO_*", "SSH_*", "GPG_*", "KRB5*"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_*", "LISTEN_*", "NOTIFY_SOCKET", "container"),
    ),
    "the terminal and the desktop": (
        *("TERM", "TERM_*", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "WINDOWPATH", "DISPLAY", "WAYLAND_DISPLAY"),
        *("XAUTHORITY", "XMODIFIERS", "DBUS_*", "DESKTOP_*", "GDMSESSION", "GNOME_*", "GTK_*", "GIO_*", "KDE_*"),
        *("QT_ACCESSIBILITY", "QT_IM_MODULE", "SESSION_MANAGER", "TMUX*", "STY", "VTE_VERSION", "KITTY_*", "KONSOLE_*"),
        *("ALACRITTY_*", "WEZTERM_*", "WT_SESSION", "WT_PROFILE_ID", "ITERM_*", "VSCODE_*"),
    ),
    "the shell": (
        *("_", "SHELL", "SHLVL", "PS1", "PS2", "PS4", "PROMPT*", "HIST*", "LS_COLORS", "LSCOLORS", "LESS*", "PAGER"),
        *("MANPAGER", "EDITOR", "VISUAL", "BROWSER", "DIRENV_*", "STARSHIP_*"),
    ),
    "Make, Ninja, CTest and pytest": (
        *("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MAKE_TERMOUT", "MAKE_TERMERR", "NINJA_STATUS"),
        *("CTEST_*", "CMAKE_BUILD_PARALLEL_LEVEL", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_*"),
    ),
    "runs of CI": (
        *("CI_*", "GITHUB_*", "RUNNER_*", "ACTIONS_*", "ImageOS", "ImageVersion", "GITLAB_*", "BUILDKITE*", "CIRCLE_*"),
        *("TRAVIS_*", "APPVEYOR_*", "DRONE_*", "SEMAPHORE_*", "BITBUCKET_*", "TEAMCITY_*", "JENKINS_*", "HUDSON_*"),
        *("BUILD_BUILDID", "BUILD_BUILDNUMBER", "BUILD_ID", "BUILD_NUMBER", "BUILD_TAG", "BUILD_URL", "JOB_NAME"),
        *("BUILD_DISPLAY_NAME", "JOB_BASE_NAME", "JOB_URL", "JOB_DISPLAY_URL", "RUN_DISPLAY_URL", "EXECUTOR_NUMBER"),
        *("NODE_NAME", "WORKSPACE_TMP", "AGENT_*", "SYSTEM_JOB*", "SYSTEM_TASK*", "SYSTEM_PLANID", "CODEBUILD_*"),
        *("SYSTEM_TIMELINEID", "KUBERNETES_*", "SLURM_*"),
    ),
    "cachec and its peers": ("CACHEC_*", "CCACHE_*", "SCCACHE_*", "DISTCC_*", "ICECC_*"),
    "proxies, certificates and clouds": (
        *("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY"),
        *("ALL_PROXY", "NO_PROXY", "SSL_CERT_*", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        *("AWS_*", "AZURE_*", "CLOUDSDK_*"),
    ),
}

#: All of them.
NEUTRAL = tuple(name for names in NEUTRAL_GROUPS.values() for name in names)

#: A variable with one of these in its name holds a secret, and does not count either. (``TOKENIZER`` is none.)
SECRET_WORDS = ("TOKEN", "SECRET", "PASSW", "PASSPHRASE", "COOKIE", "CREDENTIAL", "API_KEY", "APIKEY", "ACCESS_KEY")


class Rule:
    """Decides which variables count.

    keyed: names and patterns of those that do. passed: of those that do not; a name in ``keyed`` wins over them, a
    pattern does not. others: whether each variable counts that none of these matches, but ``NEUTRAL`` and secrets.
    """

    def __init__(self, keyed: Sequence[str], passed: Sequence[str], *, others: bool) -> None:
        self.keyed = keyed
        self.passed = passed
        self.others = others
        self.names, self._prefixes = _split(keyed)

    def matching(self, environ: Mapping[str, str]) -> list[str]:
        """Return the variables that are set and count, but for ``names``, which count where they are not set too."""
        passed, passed_prefixes = _split(self.passed)
        neutral, neutral_prefixes = _split(NEUTRAL) if self.others else (frozenset(), ())
        found = []
        for name in environ:
            if name in self.names or name in passed or name.startswith(passed_prefixes):
                continue
            is_neutral = name in neutral or name.startswith(neutral_prefixes)
            if name.startswith(self._prefixes) or (self.others and not is_neutral and not is_secret_variable(name)):
                found.append(name)
        return sorted(found)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of these, or matches one of the patterns among them."""
    return not list_unmatched([name], patterns)


def list_unmatched(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return those of the names that are none of these, and match none of the patterns among them."""
    fixed, prefixes = _split(patterns)
    return [name for name in names if name not in fixed and not name.startswith(prefixes)]


def overlap(one: str, other: str) -> bool:
    """Whether a name can match both, of which each is a name or a pattern."""
    if one.endswith("*") and other.endswith("*"):
        return one[:-1].startswith(other[:-1]) or other[:-1].startswith(one[:-1])
    if one.endswith("*"):
        return other.startswith(one[:-1])
    return one.startswith(other[:-1]) if other.endswith("*") else one == other


def _split(patterns: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """The names among them, and what the others begin with."""
    names, prefixes = set(), []
    for pattern in patterns:
        if pattern.endswith("*"):
            prefixes.append(pattern[:-1])
        else:
            names.add(pattern)
    return frozenset(names), tuple(prefixes)


def is_secret_variable(name: str) -> bool:
    """Whether a variable is a secret by its name, and so does not count."""
    text = name.upper().replace("TOKENI", "")
    return any(word in text for word in SECRET_WORDS)
