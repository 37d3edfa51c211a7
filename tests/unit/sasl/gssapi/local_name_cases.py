"""Rules and principals, and the user names that Apache Kafka 4.3 makes of them."""

from __future__ import annotations

from typing import Final, NamedTuple

REALM: Final = "EXAMPLE.COM"


class Case(NamedTuple):
    """Rules with commas between them; `user` is None where there is none, or no reading of the
    rules.
    """

    rules: str
    principal: str
    user: str | None


CASES: Final = (
    Case("DEFAULT", "alice@EXAMPLE.COM", "alice"),
    Case("DEFAULT", "kafka/host.example.com@EXAMPLE.COM", "kafka"),
    Case("DEFAULT", "alice@OTHER.COM", None),
    Case("DEFAULT", "alice", "alice"),
    Case("DEFAULT", "a/b/c@EXAMPLE.COM", None),
    Case("DEFAULT", "a@b@EXAMPLE.COM", None),
    Case("DEFAULT", "žluť@EXAMPLE.COM", "žluť"),
    Case("RULE:[1:$1]", "alice@OTHER.COM", "alice"),
    Case("RULE:[1:$1]", "alice/admin@OTHER.COM", None),
    Case("RULE:[1:$1@$0]", "alice@OTHER.COM", None),
    Case("RULE:[1:$1@$0](.*@OTHER.COM)s/@.*//", "alice@OTHER.COM", "alice"),
    Case("RULE:[1:$1@$0](.*@OTHER.COM)s/@.*//,DEFAULT", "alice@EXAMPLE.COM", "alice"),
    Case("RULE:[1:$1@$0](OTHER)s/@.*//", "alice@OTHER.COM", None),
    Case("DEFAULT,RULE:[1:$1@$0]s/@PARTNER[.]COM$/-partner/", "ann@PARTNER.COM", "ann-partner"),
    Case("DEFAULT,RULE:[1:$1@$0]s/@PARTNER[.]COM$/-partner/", "ann@OTHER.COM", None),
    Case("RULE:[2:$1](johndoe)s/^.*$/guest/", "johndoe/x@OTHER.COM", "guest"),
    Case("RULE:[2:$1;$2](^.*;admin$)s/;admin$//", "alice/admin@OTHER.COM", "alice"),
    Case("RULE:[2:$1;$2](^.*;admin$)s/;admin$//", "alice/other@OTHER.COM", None),
    Case("RULE:[2:$2-$1-$0]", "a/b@R", "b-a-R"),
    Case("RULE:[2:$1]s/a/x/", "banana/b@R", "bxnana"),
    Case("RULE:[2:$1]s/a/x/g", "banana/b@R", "bxnxnx"),
    Case("RULE:[1:$1]s/(.)(.)/$2$1/g", "abcd@R", "badc"),
    Case("RULE:[1:$1]s/(.)/$1$1/", "abcd@R", "aabcd"),
    Case("RULE:[1:$1]s/(.)/$12/", "abcd@R", "a2bcd"),
    Case("RULE:[1:$1]s/b|(a)/<$1>/g", "ab@R", "<a><>"),
    Case(r"RULE:[1:$1]s/b/\$1\\/", "abc@R", r"a$1\c"),
    Case("RULE:[1:$1]s/(?<x>b)/${x}${x}/", "abc@R", "abbc"),
    Case("RULE:[1:$1]/L", "ALICE@R", "alice"),
    Case("RULE:[1:$1]/U", "alice@R", "ALICE"),
    Case("RULE:[1:$1]L", "ALICE@R", "alice"),
    Case("RULE:[1:$1](A.*)s/L/1/g/L", "ALLY@R", "a11y"),
    Case("RULE:[1:$1](A.*)s/L/1/L", "ALLY@R", "a1ly"),
    Case("RULE:[1:$1-x]", "alice@R", "alice-x"),
    Case("RULE:[1:]", "alice@R", ""),
    Case("RULE:[0:x]", "alice@R", None),
    Case("RULE:[3:$1]", "alice@R", None),
    Case("RULE:[1:$1]s/a/b@c/", "alice@R", None),
    Case("RULE:[2:$1/$2]", "a/b@R", None),
    Case("RULE:[1:$1](alice),RULE:[1:guest]", "bob@R", "guest"),
    Case("DEFAULT,RULE:[1:guest]", "bob@R", "guest"),
    Case("RULE:[1:$2]", "alice@R", None),
    Case("RULE:[1:$]", "alice@R", None),
    Case("RULE:[1:$1]s/(a)/$2/", "alice@R", None),
    Case("RULE:[1:$1]s/a/$x/", "alice@R", None),
    Case("default", "alice@EXAMPLE.COM", None),
    Case("DEFAULT/L", "alice@EXAMPLE.COM", None),
    Case("RULE:[1:$1](a", "alice@R", None),
    Case("RULE:[:$1]", "alice@R", None),
    Case("RULE:[1:$1](*)", "alice@R", None),
    Case("RULE:[1:$1]s/a/b", "alice@R", None),
    Case("RULE:[1:$1] ", "alice@R", None),
)
