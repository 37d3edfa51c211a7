"""AlterUserScramCredentials (51) v0: change SCRAM credentials."""

from moldau.protocol.schema import Request, Struct, ThrottledResponse, field
from moldau.protocol.types import Bytes, Int8, Int16, Int32, String


class ScramCredentialDeletion(Struct):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Struct):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""


class AlterUserScramCredentialsRequest(
    Request["AlterUserScramCredentialsResponse"], versions="0", flexible="0+"
):
    deletions: list[ScramCredentialDeletion] = field()
    upsertions: list[ScramCredentialUpsertion] = field()


class AlterUserScramCredentialsResult(Struct):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")


class AlterUserScramCredentialsResponse(
    ThrottledResponse, answers=AlterUserScramCredentialsRequest
):
    results: list[AlterUserScramCredentialsResult] = field()
