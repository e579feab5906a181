"""The tables, as SQLAlchemy Core. Portable SQL: times are RFC 3339 strings (they sort), ids are strings.

A test compares these with what the migrations make, so a change here needs a migration beside it.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)
# SQLite counts only an INTEGER primary key by itself; elsewhere 32 bits would run out.
Sequence = BigInteger().with_variant(Integer, "sqlite")
TIME = String(32)

LIVE_ROWS = text("state IN ('creating', 'running', 'stopping')")
NAMED_ROWS = text("name IS NOT NULL AND state IN ('creating', 'running')")
"""As text, also in queries: SQLite uses a partial index only where it sees the very condition."""

projects = Table(
    "projects",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("created_at", TIME, nullable=False),
    UniqueConstraint("name"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("project_id", String(32), ForeignKey("projects.id"), nullable=False),
    Column("label", String(256)),
    Column("secret_sha256", String(64), nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("last_used_at", TIME),
    Column("revoked_at", TIME),
    UniqueConstraint("secret_sha256"),
    Index(None, "project_id"),
)

project_limits = Table(
    "project_limits",
    metadata,
    Column("project_id", String(32), ForeignKey("projects.id"), primary_key=True),
    Column("sandboxes", Integer, nullable=False),
)

sandboxes = Table(
    "sandboxes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("project_id", String(32), ForeignKey("projects.id"), nullable=False),
    Column("state", String(16), nullable=False),
    Column("termination_reason", String(16)),
    Column("message", Text),
    Column("template", String(64), nullable=False),
    Column("template_digest", String(64), nullable=False),
    Column("template_env", JSON, nullable=False),
    Column("name", String(64)),
    Column("owner", String(256)),
    Column("labels", JSON, nullable=False),
    Column("env", JSON, nullable=False),
    Column("user", String(256), nullable=False),
    Column("workdir", Text, nullable=False),
    Column("cpus", Float, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("disk_bytes", BigInteger, nullable=False),
    Column("inodes", BigInteger, nullable=False),
    Column("pids", Integer, nullable=False),
    Column("lifetime_s", Float, nullable=False),
    Column("idle_timeout_s", Float),
    Column("expires_at", TIME),
    Column("tier", String(32), nullable=False),
    Column("runtime", String(64)),
    Column("runtime_version", String(128)),
    Column("network", JSON, nullable=False, server_default='"deny"'),
    Column("network_generation", Integer, nullable=False, server_default="1"),
    Column("identity", Boolean, nullable=False, server_default=true()),
    Column("auto_publish", String),
    Column("auto_publish_host", String(256)),
    Column("auto_publish_tls", JSON, nullable=False, server_default="[]"),
    Column("node_id", String(64)),
    Column("generation", Integer, nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("started_at", TIME),
    Column("ended_at", TIME),
    Column("deleted_at", TIME),
    Index("ix_sandboxes_list", "project_id", "created_at", "id"),
    Index("ix_sandboxes_state", "state", "ended_at"),
    # What counts against a project's limit; its ended ones may be a thousand times as many.
    Index("ix_sandboxes_live", "project_id", sqlite_where=LIVE_ROWS, postgresql_where=LIVE_ROWS),
    # A name is free again as soon as its sandbox is on the way out.
    Index(
        "uq_sandboxes_live_name",
        "project_id",
        "name",
        unique=True,
        sqlite_where=NAMED_ROWS,
        postgresql_where=NAMED_ROWS,
    ),
)

sandbox_labels = Table(
    "sandbox_labels",
    metadata,
    Column("sandbox_id", String(32), ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("value", String(256), nullable=False),
    Index(None, "key", "value"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("project_id", String(32), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_sha256", String(64), nullable=False),
    Column("sandbox_id", String(32), nullable=False),
    Column("status", Integer),
    Column("response", Text),
    Column("created_at", TIME, nullable=False),
    Index(None, "created_at"),
)

events = Table(
    "events",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("at", TIME, nullable=False),
    Column("type", String(64), nullable=False),
    Column("project_id", String(32), nullable=False),
    Column("sandbox_id", String(32)),
    Column("data", JSON, nullable=False),
    Index(None, "at"),
    Index(None, "project_id", "seq"),
    Index(None, "sandbox_id", "seq"),
    sqlite_autoincrement=True,
)

event_sinks = Table(
    "event_sinks",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),
)

pools = Table(
    "pools",
    metadata,
    Column("template", String(64), primary_key=True),
    Column("size", Integer, nullable=False),
    Column("ceiling", Integer),
    Column("cpus", Float, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("disk_bytes", BigInteger, nullable=False),
    Column("inodes", BigInteger, nullable=False),
    Column("pids", Integer, nullable=False),
    Column("tier", String(32), nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("updated_at", TIME, nullable=False),
)

published_ports = Table(
    "published_ports",
    metadata,
    Column("sandbox_id", String(32), ForeignKey("sandboxes.id", ondelete="CASCADE"), primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
    Column("project_id", String(32), nullable=False),
    Column("visibility", String(16), nullable=False),
    Column("host_header", String(256)),
    Column("frame_ancestors", JSON(none_as_null=True)),
    Column("http2", Boolean, nullable=False),
    Column("tls", Boolean, nullable=False, server_default=false()),
    Column("address", String(15)),
    Column("key", String(64), nullable=False),
    Column("created_at", TIME, nullable=False),
    Column("updated_at", TIME, nullable=False),
    Column("expires_at", TIME),
    UniqueConstraint("address"),
)

spent_port_tokens = Table(
    "spent_port_tokens",
    metadata,
    Column("sandbox_id", String(32), primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
    Column("token_id", String(32), primary_key=True),
    Column("expires_at_unix", Float, nullable=False),
    ForeignKeyConstraint(
        ["sandbox_id", "port"], ["published_ports.sandbox_id", "published_ports.port"], ondelete="CASCADE"
    ),
    Index(None, "expires_at_unix"),
)

node_cursors = Table(
    "node_cursors",
    metadata,
    Column("node_id", String(64), primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", Sequence, primary_key=True, autoincrement=True),
    Column("at", TIME, nullable=False),
    Column("project_id", String(32)),
    Column("key_id", String(32)),
    Column("action", String(64), nullable=False),
    Column("objects", JSON, nullable=False),
    Column("status", Integer, nullable=False),
    Column("code", String(64)),
    Column("request_id", String(128), nullable=False),
    Index(None, "at"),
    Index(None, "project_id", "seq"),
    sqlite_autoincrement=True,
)

alembic_version = Table(
    "alembic_version",
    MetaData(),  # Alembic's own
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
