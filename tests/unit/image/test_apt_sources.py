"""The build host's apt: which sources and options a template's build takes over, and which never."""

from __future__ import annotations

from bellglass.node.image import apt_sources


def paragraph(**changes: str) -> str:
    fields = {
        "Release": "bookworm",
        "Codename": "bookworm",
        "Component": "main",
        "Origin": "Debian",
        "Target-Of": "deb",
        "Repo-URI": "http://mirror.example/debian/",
    }
    fields |= {key.replace("_", "-"): value for key, value in changes.items()}
    return "\n".join(f"{key}: {value}" for key, value in fields.items() if value)


def parse(*paragraphs: str) -> tuple[str, ...]:
    return apt_sources.parse_index_targets("\n\n".join(paragraphs), "bookworm")


def test_takes_suite_updates_and_security_once() -> None:
    found = parse(
        paragraph(),
        paragraph(),
        paragraph(Release="bookworm-updates", Codename="bookworm-updates"),
        paragraph(Release="bookworm-security", Codename="", Origin="", Repo_URI="http://mirror.example/security/"),
    )
    assert found == (
        "deb http://mirror.example/debian/ bookworm main",
        "deb http://mirror.example/debian/ bookworm-updates main",
        "deb http://mirror.example/security/ bookworm-security main",
    )


def test_takes_a_suite_by_its_code_name() -> None:
    assert parse(paragraph(Release="stable")) == ("deb http://mirror.example/debian/ stable main",)


def test_leaves_third_parties_other_suites_and_components() -> None:
    assert (
        parse(
            paragraph(Origin="Docker", Component="stable"),
            paragraph(Origin="Docker"),
            paragraph(Component="contrib"),
            paragraph(Release="trixie", Codename="trixie"),
            paragraph(Target_Of="deb-src"),
        )
        == ()
    )


def test_carries_the_way_to_the_mirrors() -> None:
    dump = "\n".join(
        [
            'Acquire::http::Proxy "http://proxy.example:3128/";',
            'Acquire::https::CAInfo "/etc/ssl/corp.pem";',
            'Acquire::Check-Valid-Until "false";',
            'Acquire::http::Dl-Limit "";',
            'Acquire::Languages:: "en";',
            'DPkg::Post-Invoke:: "rm -rf /tmp/x";',
            'APT::Install-Recommends "true";',
            'Dir::Etc::netrc "auth.conf";',
        ]
    )
    assert list(apt_sources.parse_options(dump)) == [
        'Acquire::http::Proxy "http://proxy.example:3128/";',
        'Acquire::https::CAInfo "/etc/ssl/corp.pem";',
        'Acquire::Check-Valid-Until "false";',
        'Dir::Etc::netrc "/etc/apt/auth.conf";',
    ]


def test_credentials_leave_the_result() -> None:
    text = "deb https://me:s3cret@mirror.example/debian bookworm main\nURIs: https://token@mirror.example/x\n"
    assert apt_sources.without_credentials(text) == (
        "deb https://mirror.example/debian bookworm main\nURIs: https://mirror.example/x\n"
    )
    plain = "deb http://mirror.example/debian@old bookworm main\n"
    assert apt_sources.without_credentials(plain) == plain
