"""PKCS12 stores, by way of `cryptography` where it is installed (the extra `tls`).

Must not be imported for PEM's sake: `cryptography` is loaded when a store is read.
"""

from __future__ import annotations

from typing import Any

from moldau.runtime.authentication.errors import SecuritySettingError


def read_pkcs12(data: bytes, password: str | None, where: str) -> tuple[str | None, str | None]:
    """All certificates and the key of a store as PEM text, each None where there is none.

    Raises:
        SecuritySettingError: `cryptography` is missing, or the password does not open the store.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise SecuritySettingError(
            f"{where} is a PKCS12 store, which needs the package cryptography: install "
            "moldau[tls], or turn it into PEM with openssl pkcs12 -nodes"
        ) from None
    try:
        store = pkcs12.load_pkcs12(data, password.encode() if password is not None else None)
    except ValueError as error:
        raise SecuritySettingError(
            f"{where}: the PKCS12 store cannot be opened ({error}); is the password right?"
        ) from None
    encoding = serialization.Encoding.PEM
    certificates: list[Any] = [] if store.cert is None else [store.cert.certificate]
    certificates += [each.certificate for each in store.additional_certs]
    chain = "".join(each.public_bytes(encoding).decode() for each in certificates)
    key: str | None = None
    if store.key is not None:
        key = store.key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
    return chain or None, key
