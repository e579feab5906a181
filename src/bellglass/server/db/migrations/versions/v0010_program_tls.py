"""Published ports whose programs speak TLS alone."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("auto_publish_tls", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("published_ports", sa.Column("tls", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
