"""A secured node: TLS with client certificates, login, and the profile that clients use.

`IGNITETF_HOME/nodes/NAME/secure/` holds certificates and passwords, readable only by their owner.
While the node runs, every command can find them through `IGNITETF_HOME/profiles/NAME.json`. The
profile of the node `default` is used automatically, others with `--profile NAME` or `--node NAME`.

Ignite gives a new cluster the user `ignite`, with a publicly known password; only this user can
add and drop users. The first start changes the password, and adds the user `ignitetf` for the
profile.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ignitetf.errors import AuthenticationError, ConfigError, IgniteTFError, NodeError, SqlError
from ignitetf.local.process import private_directory, write_private
from ignitetf.node.certificates import CertificateFiles, expires_soon, make_certificates
from ignitetf.node.config import TlsStores
from ignitetf.profiles import profile_path
from ignitetf.settings import Settings, limits_of_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ignitetf.net.client import Client

__all__ = ["ADMIN", "PROFILE_USER", "Security"]

ADMIN = "ignite"
PROFILE_USER = "ignitetf"
_DEFAULT_PASSWORD = "ignite"  # the administrator's password in each new cluster
_PASSWORD_BYTES = 24
_PREPARE_TIMEOUT_S = 60.0
_FILE = "secrets.json"
_PROFILE_COPY = "profile.json"
_EXCEPTION_TEXT = re.compile(r"UserManagementException: ([^\[\]]+?) \[")


def _generated() -> str:
    return secrets.token_urlsafe(_PASSWORD_BYTES)


@dataclass(frozen=True)
class _Passwords:
    admin: str = field(default_factory=_generated, repr=False)
    user: str = field(default_factory=_generated, repr=False)
    key_store: str = field(default_factory=_generated, repr=False)
    trust_store: str = field(default_factory=_generated, repr=False)


class Security:
    """Certificates, passwords and profile of one secured node.

    Args:
        name: Name of the node.
        node_directory: Folder of the node.
    """

    def __init__(self, name: str, node_directory: Path) -> None:
        self.name = name
        self._directory = node_directory / "secure"
        self.files = CertificateFiles(self._directory)
        self._passwords: _Passwords | None = None

    def prepare(self) -> None:
        """Create missing passwords and certificates; replace certificates that expire soon.

        If several processes do this at once, one creates the files and all use them: the container
        that sets up the users may start together with the node's container.

        Raises:
            NodeError: A profile of this name exists but belongs to another cluster, or another
                process has held the lock for a minute.
        """
        private_directory(self._directory)
        profile = profile_path(self.name)
        if profile.exists() and not self._owns_profile():
            raise NodeError(
                f"profile {self.name!r} exists and was not made by this node",
                hint=f"give another --name, or move {profile} away",
            )
        try:
            with FileLock(self._directory / "lock", timeout=_PREPARE_TIMEOUT_S, mode=0o600):
                self._make_missing()
        except Timeout as error:
            raise NodeError(
                f"another process has been preparing node {self.name!r} for {_PREPARE_TIMEOUT_S:g} s",
                hint="wait for it, or end it",
            ) from error

    def _make_missing(self) -> None:
        passwords = self._read()
        if passwords is None:
            passwords = _Passwords()
            self._write(passwords)
        if not self.files.complete or expires_soon(self.files):
            make_certificates(self.files, passwords.key_store, passwords.trust_store)

    @property
    def stores(self) -> TlsStores:
        """Return the key stores for the JVM, with their passwords."""
        passwords = self._required()
        return TlsStores(
            str(self.files.key_store),
            passwords.key_store,
            str(self.files.trust_store),
            passwords.trust_store,
        )

    def settings(self, addresses: Sequence[str]) -> Settings:
        """Return the settings with which the user of the profile connects."""
        return self._settings(addresses, PROFILE_USER, self._required().user)

    def establish(self, addresses: Sequence[str]) -> None:
        """Set the passwords of the administrator and the profile's user, on an active cluster.

        Safe to repeat after an interrupted start: steps that are already done are skipped.
        """
        passwords = self._required()
        with self._as_admin(addresses) as client:
            if client.settings.password != passwords.admin:
                self._run(client, "ALTER", ADMIN, passwords.admin)
        try:
            self._connect(self.settings(addresses)).close()
        except AuthenticationError:
            with self._as_admin(addresses) as client:
                try:
                    self._run(client, "CREATE", PROFILE_USER, passwords.user)
                except NodeError:
                    self._run(client, "ALTER", PROFILE_USER, passwords.user)

    def admin_settings(self, addresses: Sequence[str]) -> Settings:
        """Return the administrator's settings, with the generated or the initial password.

        Raises:
            AuthenticationError: The node accepts neither.
        """
        generated = self._settings(addresses, ADMIN, self._required().admin)
        try:
            self._connect(generated).close()
            return generated
        except AuthenticationError:
            new = generated.replace(password=_DEFAULT_PASSWORD)
            self._connect(new).close()
            return new

    def write_profile(self, addresses: Sequence[str]) -> Path:
        """Write the client profile, mode 600."""
        settings = self.settings(addresses)
        data = {
            "addresses": list(settings.addresses),
            "username": settings.username,
            "password": settings.password,
            "tls": True,
            "ca": settings.ca,
            "cert": settings.cert,
            "key": settings.key,
        }
        path = profile_path(self.name)
        private_directory(path.parent)
        text = json.dumps(data, indent=1)
        write_private(self._directory / _PROFILE_COPY, text)
        write_private(path, text)
        return path

    def remove_profile(self) -> None:
        """Remove the profile, unless it was changed."""
        if self._owns_profile():
            profile_path(self.name).unlink(missing_ok=True)

    def add_user(self, addresses: Sequence[str], user: str, password: str) -> None:
        """Add a user who may log in; raises NodeError if the name is taken."""
        with self._as_admin(addresses) as client:
            self._run(client, "CREATE", user, password)

    def change_password(self, addresses: Sequence[str], user: str, password: str) -> None:
        """Change a user's password; for our own users, also update the stored password."""
        with self._as_admin(addresses) as client:
            self._run(client, "ALTER", user, password)
        passwords = self._required()
        if user == ADMIN:
            self._write(replace(passwords, admin=password))
        elif user == PROFILE_USER:
            self._write(replace(passwords, user=password))
            self.write_profile(addresses)

    def drop_user(self, addresses: Sequence[str], user: str) -> None:
        """Remove a user; raises NodeError if the user does not exist or the node needs it."""
        if user in (ADMIN, PROFILE_USER):
            raise NodeError(
                f"the user {user!r} is needed by the node itself",
                hint=f"change the password with 'ignitetf node user password {user}'",
            )
        with self._as_admin(addresses) as client:
            self._run(client, "DROP", user, None)

    @contextmanager
    def _as_admin(self, addresses: Sequence[str]) -> Iterator[Client]:
        with self._connect(self.admin_settings(addresses)) as client:
            yield client

    @staticmethod
    def _connect(settings: Settings) -> Client:
        from ignitetf.net.client import Client

        return Client(settings)

    @staticmethod
    def _run(client: Client, verb: str, user: str, password: str | None) -> None:
        """Run a statement about a user; errors do not contain its text, which has the password."""
        if '"' in user or not user.isprintable() or not user:
            raise ConfigError("a user name may not be empty or contain '\"' or control characters")
        statement = f'{verb} USER "{user}"'
        if password is not None:
            if not password:
                raise ConfigError("an empty password is not a password")
            quoted = password.replace("'", "''")
            statement += f" WITH PASSWORD '{quoted}'"
        reason = None
        try:
            client.sql(statement)
        except IgniteTFError as error:
            said = error.__cause__ if isinstance(error, SqlError) else error
            reason = _reason(str(said), password)
        if reason is not None:
            raise NodeError(f"{verb.lower()} user {user!r}: {reason}")

    def _settings(self, addresses: Sequence[str], user: str, password: str) -> Settings:
        return Settings(
            addresses=tuple(addresses),
            username=user,
            password=password,
            tls=True,
            ca=str(self.files.ca),
            cert=str(self.files.client_cert),
            key=str(self.files.client_key),
            **limits_of_environment(),
        )

    def _owns_profile(self) -> bool:
        try:
            ours = (self._directory / _PROFILE_COPY).read_bytes()
            return profile_path(self.name).read_bytes() == ours
        except OSError:
            return False

    def _required(self) -> _Passwords:
        self._passwords = self._passwords or self._read()
        if self._passwords is None:
            raise NodeError(
                f"the passwords of node {self.name!r} are gone from {self._directory}",
                hint="its data cannot be reached without them; start a node with another --name",
            )
        return self._passwords

    def _read(self) -> _Passwords | None:
        try:
            data = json.loads((self._directory / _FILE).read_text(encoding="utf-8"))
            return _Passwords(**data)
        except (OSError, ValueError, TypeError):
            return None

    def _write(self, passwords: _Passwords) -> None:
        write_private(self._directory / _FILE, json.dumps(asdict(passwords), indent=1))
        self._passwords = passwords


def _reason(message: str, password: str | None) -> str:
    """Return the informative part of the server's message, with any quoted password masked."""
    found = _EXCEPTION_TEXT.search(message)
    reason = found[1] if found else message
    for form in (password, password.replace("'", "''")) if password else ():
        reason = reason.replace(form, "***")
    return reason
