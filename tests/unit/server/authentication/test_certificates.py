"""Names in certificates and what the rules make of them.

The expected names are those of Java's `X500Principal.getName()`, the mapped ones those of Apache
Kafka 4.3's `SslPrincipalMapper`, which were asked for the same certificates and rules.
"""

from __future__ import annotations

import datetime
import ssl
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import example, given
from hypothesis import strategies as st

from moldau.server.authentication.certificates import (
    MappingRuleError,
    NoMatchingRule,
    PrincipalMapping,
    certificates_in,
    first_certificate,
)
from moldau.x509 import alternative_names, end_of, subject_name
from tests.kit.dated_certificates import dated

KEY = ec.generate_private_key(ec.SECP256R1())
CN, ORG, DC, UID = (
    NameOID.COMMON_NAME,
    NameOID.ORGANIZATION_NAME,
    NameOID.DOMAIN_COMPONENT,
    NameOID.USER_ID,
)


def certificate(subject: x509.Name, *extensions: x509.ExtensionType) -> bytes:
    begin = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(x509.Name([x509.NameAttribute(CN, "an authority")]))
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=9_000))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def named(*attributes: tuple[ObjectIdentifier, str]) -> bytes:
    return certificate(x509.Name([x509.NameAttribute(*each) for each in attributes]))


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        (
            [(NameOID.COUNTRY_NAME, "CZ"), (ORG, "Acme, Inc."), (CN, "alice")],
            r"CN=alice,O=Acme\, Inc.,C=CZ",
        ),
        (
            [(NameOID.EMAIL_ADDRESS, "a@b.c"), (CN, 'a+b=c;d<e>f#g"h\\i')],
            r"CN=a\+b\=c\;d\<e\>f\#g\"h\\i,1.2.840.113549.1.9.1=#16056140622e63",
        ),
        ([(CN, " leading and trailing  ")], "CN=\\ leading and trailing\\ \\ "),
        ([(CN, "   ")], "CN=\\ \\ \\ "),
        (
            [(CN, "Jürgen 日本 \U0001f600"), (DC, "example"), (DC, "com")],
            "DC=com,DC=example,CN=Jürgen 日本 \U0001f600",
        ),
        (
            [
                (UID, "u1"),
                (NameOID.STREET_ADDRESS, "s"),
                (NameOID.LOCALITY_NAME, "l"),
                (NameOID.STATE_OR_PROVINCE_NAME, "st"),
                (NameOID.SURNAME, "sur"),
                (NameOID.SERIAL_NUMBER, "12"),
            ],
            "2.5.4.5=#13023132,2.5.4.4=#0c03737572,ST=st,L=l,STREET=s,UID=u1",
        ),
        ([(ObjectIdentifier("1.2.3.4.55555"), "x")], "1.2.3.4.55555=#0c0178"),
        ([(ObjectIdentifier("0.39.1"), "x")], "0.39.1=#0c0178"),
        ([(ObjectIdentifier("1.0.1"), "x")], "1.0.1=#0c0178"),
        ([(ObjectIdentifier("1.39.1"), "x")], "1.39.1=#0c0178"),
        ([(ObjectIdentifier("2.0.1"), "x")], "2.0.1=#0c0178"),
        ([(ObjectIdentifier("2.40.1"), "x")], "2.40.1=#0c0178"),
        ([(ObjectIdentifier("2.999.128"), "x")], "2.999.128=#0c0178"),
        ([(CN, "tab\tline\nend")], "CN=tab\tline\nend"),
        ([], ""),
    ],
)
def test_subjects_are_written_as_java_writes_them(
    attributes: list[tuple[ObjectIdentifier, str]], name: str
) -> None:
    assert subject_name(named(*attributes)) == name


def test_subjects_with_several_attributes_in_one_part_and_rare_encodings() -> None:
    both = x509.RelativeDistinguishedName(
        [x509.NameAttribute(CN, "a"), x509.NameAttribute(UID, "b")]
    )
    last = x509.RelativeDistinguishedName([x509.NameAttribute(ORG, "o")])
    assert subject_name(certificate(x509.Name([both, last]))) == "O=o,CN=a+UID=b"
    wide = x509.NameAttribute(CN, "bmp", _ASN1Type.BMPString)
    assert subject_name(certificate(x509.Name([wide]))) == "CN=\\00b\\00m\\00p"


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("DEFAULT,DEFAULT,", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=duke,OU=ServiceUsers,O=x", "duke"),
        (
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
            "CN=Duke,OU=JavaSoft,O=Sun,L=x,ST=y,C=z",
            "duke@javasoft",
        ),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U , DEFAULT", "CN=duke,O=x", "DUKE"),
        ("RULE:^CN=(.*)$/$12/", "CN=duke", "duke2"),
        (r"RULE:^CN=(.*)$/a\/b$1/", "CN=duke", "a/bduke"),
        (r"RULE:^CN=(.*)$/\$1/", "CN=duke", "$1"),
        ("RULE:^CN=(.*)$/$0!/", "CN=duke", "CN=duke!"),
        ("RULE:.*/X/", "CN=duke", "XX"),
        ("RULE:^CN=b$/$0/,RULE:^CN=(.)(.)?$/[$2]/", "CN=c", "[]"),
        ("RULE:CN=(.)/$1/,DEFAULT", "xCN=cx", "xCN=cx"),
        (r"RULE:^C\/N=(.*)$/$1/", "C/N=q", "q"),
        ("RULE:a/b/,,DEFAULT", "CN=a", "CN=a"),
        ("RULE:^CN=(.*)$/é$1/U", "CN=ß", "ÉSS"),
    ],
)
def test_rules_map_as_in_apache_kafka(rules: str, subject: str, user: str) -> None:
    assert PrincipalMapping(rules).user_name(subject) == user


@pytest.mark.parametrize(
    ("replacement", "user"),
    [("$2", "$2"), ("$2$1", "$2duke"), ("$99!", "$99!"), ("a$2b", "a$2b")],
)
def test_a_group_that_the_pattern_lacks_stays_as_it_is_written(replacement: str, user: str) -> None:
    assert PrincipalMapping(f"RULE:^CN=(.*)$/{replacement}/").user_name("CN=duke") == user


def test_a_pattern_without_groups_has_only_the_whole() -> None:
    assert PrincipalMapping("RULE:^CN=duke$/$1/").user_name("CN=duke") == "$1"
    assert PrincipalMapping("RULE:^CN=duke$/$01/").user_name("CN=duke") == "CN=duke1"


@pytest.mark.parametrize("rules", ["", "RULE:^CN=b$/b/", ","])
def test_without_a_rule_that_matches_there_is_no_user(rules: str) -> None:
    with pytest.raises(NoMatchingRule, match="CN=a"):
        PrincipalMapping(rules).user_name("CN=a")


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ("RULE:x", "'RULE:x' is neither RULE:PATTERN/NAME/ nor DEFAULT"),
        ("NONE", "'NONE' is neither"),
        ("N" * 61, f"'{'N' * 60}' is neither"),
        ("RULE:a/b/X", "a comma is missing before 'X'"),
        ("RULE:a/b/" + "X" * 61, f"a comma is missing before '{'X' * 60}'"),
        ("RULE:(/b/", r"'(' is no pattern: missing ), unterminated subpattern"),
        ("DEFAULT DEFAULT", "a comma is missing before ' DEFAULT'"),
        ("RULE:a/b/ DEFAULT", "a comma is missing before ' DEFAULT'"),
        ("default", "'default' is neither"),
        ("DEFAULT,none", "'none' is neither"),
    ],
)
def test_rules_that_cannot_be_read(rules: str, complaint: str) -> None:
    with pytest.raises(MappingRuleError) as refused:
        PrincipalMapping(rules)
    assert str(refused.value).startswith(complaint)


@given(
    st.datetimes(datetime.datetime(1950, 1, 2), datetime.datetime(9999, 12, 31, 23, 59, 59)).map(
        lambda each: each.replace(microsecond=0, tzinfo=datetime.UTC)
    )
)
@example(datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC))
@example(datetime.datetime(2049, 12, 31, 23, 59, 59, tzinfo=datetime.UTC))
@example(datetime.datetime(2050, 1, 1, tzinfo=datetime.UTC))
@example(datetime.datetime(1950, 1, 2, tzinfo=datetime.UTC))
def test_the_end_of_a_certificate_is_read_off_it(end: datetime.datetime) -> None:
    encoded = dated("a", end).public_bytes(serialization.Encoding.DER)
    assert end_of(encoded) == end
    assert end_of(encoded + b"what it is trusted for") == end


@pytest.mark.parametrize("text", [b"261230120000+0100", b"2612301200Z", b"\xff61230120000Z"])
def test_an_end_in_no_form_of_certificates_is_refused(text: bytes) -> None:
    good = dated("a", datetime.datetime(2026, 12, 30, 12, tzinfo=datetime.UTC))
    encoded = good.public_bytes(serialization.Encoding.DER)
    at = encoded.index(b"261230120000Z")
    wrong = text[:13].ljust(13, b"Z")
    with pytest.raises(ValueError, match=r"time data|unconverted"):
        end_of(encoded[:at] + wrong + encoded[at + 13 :])


@given(st.integers(0, 400), st.binary(max_size=3))
def test_what_is_no_certificate_is_one_kind_of_error(length: int, more: bytes) -> None:
    good = named((CN, "a"))
    for read in (end_of, subject_name, alternative_names):
        with suppress(ValueError):
            read(good[:length] + more)
    with pytest.raises(ValueError, match="no certificate in DER"):
        end_of(b"")


def test_alternative_names_are_those_of_their_extension_alone() -> None:
    subject = x509.Name([x509.NameAttribute(CN, "a")])
    names = x509.SubjectAlternativeName([x509.DNSName("a.b"), x509.DNSName("c")])
    other = x509.BasicConstraints(ca=False, path_length=None)
    wanted = {b"\x82\x03a.b", b"\x82\x01c"}
    assert alternative_names(certificate(subject, other, names)) == wanted
    assert alternative_names(certificate(subject, names, other)) == wanted
    assert alternative_names(certificate(subject, other)) == frozenset()
    assert alternative_names(certificate(subject)) == frozenset()


@pytest.mark.parametrize("label", ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"])
@pytest.mark.parametrize("between", ["", "\n", "x", "-"])
def test_the_first_certificate_of_a_chain_ends_where_its_last_line_does(
    label: str, between: str
) -> None:
    first, second = named((CN, "a")), named((CN, "b"))
    texts = [ssl.DER_cert_to_PEM_cert(each).strip() for each in (first, second)]
    chain = between.join(text.replace("CERTIFICATE", label) for text in texts)
    assert first_certificate(chain) == first
    assert first_certificate("# -- a comment --\n" + chain) == first
    assert list(certificates_in(chain)) == [first, second]
