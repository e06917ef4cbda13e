"""The process that `raftmq proxy` becomes. To save memory, it imports only the modules that serve.

    python -m mq.cli.proxy_process CONFIGURATION LOG_LEVEL [--until-stdin-closes]

CONFIGURATION is a `ProxyConfiguration` as JSON.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from mq.cli.errors import EXIT_FAILED, CommandFailed, or_exit


def run(configuration_json: str, log_level: str, *, until_stdin_closes: bool) -> None:
    """Serve until a signal. Raises CommandFailed."""
    import trio

    try:
        from mq.proxy.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("h2", "hpack", "hyperframe", "google"):
            raise
        raise CommandFailed(f"the proxy needs {error.name}: pip install 'raftmq[server,proxy]'") from error
    from mq.certificate import CertificateUnusable
    from mq.cli.logs import configure_logging
    from mq.cli.running import run_server
    from mq.client.net.credentials import CredentialsInvalid
    from mq.proxy.configuration import ProxyConfiguration

    configuration = ProxyConfiguration.from_json(configuration_json)
    configure_logging(log_level)
    gc.collect()
    gc.freeze()  # the collector need not walk through modules again
    drain_event = trio.Event()
    try:
        run_server(
            lambda: serve(configuration, drain_event=drain_event),
            until_stdin_closes=until_stdin_closes,
            on_stop=drain_event.set,
        )
    except (CertificateUnusable, CredentialsInvalid) as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        where = error.filename or f"cannot listen on {configuration.listen_host}:{configuration.listen_port}"
        raise CommandFailed(f"{where}: {error.strerror or error}", EXIT_FAILED) from error


def _run(arguments: Sequence[str]) -> None:
    if len(arguments) < 2:
        raise CommandFailed("this is a part of `raftmq proxy`: start that")
    configuration_json, log_level, *options = arguments
    run(configuration_json, log_level, until_stdin_closes="--until-stdin-closes" in options)


def main() -> None:
    """Run the proxy that the command line describes; exits with the exit codes of `raftmq proxy`."""
    # structlog imports rich wherever that is installed, for tracebacks in colour, and rich takes 4 MB.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        or_exit(lambda: _run(sys.argv[1:]))
    except KeyboardInterrupt:  # while it starts, as `raftmq`
        sys.exit(130)


if __name__ == "__main__":
    main()
