"""How ports of a sandbox are published at their first visit, where they are."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sandboxes", sa.Column("auto_publish", sa.String(), nullable=True))


def downgrade() -> None:
    raise NotImplementedError("migrations go forward only")
