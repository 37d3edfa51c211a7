"""DescribeUserScramCredentials (50) v0: describe SCRAM credentials."""

from moldau.protocol.schema import ExplainedResponse, Request, Struct, field
from moldau.protocol.types import Int8, Int16, Int32, String


class UserName(Struct):
    name: String = ""


class DescribeUserScramCredentialsRequest(
    Request["DescribeUserScramCredentialsResponse"], versions="0", flexible="0+"
):
    users: list[UserName] | None = field(nullable="0+")


class CredentialInfo(Struct):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Struct):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = field("", nullable="0+")
    credential_infos: list[CredentialInfo] = field()


class DescribeUserScramCredentialsResponse(
    ExplainedResponse, answers=DescribeUserScramCredentialsRequest
):
    results: list[DescribeUserScramCredentialsResult] = field()
