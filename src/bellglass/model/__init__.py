"""The records that the API takes and gives, shared by server, node, SDK and CLI: one module a noun.

Standard library only. Each is a frozen dataclass that also serves as a pydantic body: see record.py.

Times in records are RFC 3339 strings in UTC; sizes are bytes; durations are seconds.
"""

from bellglass.model.contexts import DEFAULT_RUN_TIMEOUT_S as DEFAULT_RUN_TIMEOUT_S
from bellglass.model.contexts import LANGUAGES as LANGUAGES
from bellglass.model.contexts import MAX_CODE_BYTES as MAX_CODE_BYTES
from bellglass.model.contexts import MAX_RUN_TIMEOUT_S as MAX_RUN_TIMEOUT_S
from bellglass.model.contexts import Context as Context
from bellglass.model.contexts import CreateContext as CreateContext
from bellglass.model.contexts import RunCode as RunCode
from bellglass.model.contexts import RunResult as RunResult
from bellglass.model.events import Event as Event
from bellglass.model.executions import CreateExecution as CreateExecution
from bellglass.model.executions import Execution as Execution
from bellglass.model.executions import ExecutionResult as ExecutionResult
from bellglass.model.executions import Terminal as Terminal
from bellglass.model.files import FileEvent as FileEvent
from bellglass.model.files import FileInfo as FileInfo
from bellglass.model.files import SignedUrl as SignedUrl
from bellglass.model.logs import LogLine as LogLine
from bellglass.model.logs import LogPage as LogPage
from bellglass.model.metrics import SandboxMetrics as SandboxMetrics
from bellglass.model.network import DEFAULT_PORTS as DEFAULT_PORTS
from bellglass.model.network import MAX_DENIED as MAX_DENIED
from bellglass.model.network import MAX_PRESETS as MAX_PRESETS
from bellglass.model.network import MAX_RULE_PORTS as MAX_RULE_PORTS
from bellglass.model.network import MAX_RULES as MAX_RULES
from bellglass.model.network import Network as Network
from bellglass.model.network import NetworkPolicy as NetworkPolicy
from bellglass.model.network import NetworkRule as NetworkRule
from bellglass.model.network import NetworkTraffic as NetworkTraffic
from bellglass.model.network import PutNetwork as PutNetwork
from bellglass.model.network import ResolvedRule as ResolvedRule
from bellglass.model.network import SandboxNetwork as SandboxNetwork
from bellglass.model.network import check_known as check_known
from bellglass.model.network import read_network as read_network
from bellglass.model.nodes import TemplateInfo as TemplateInfo
from bellglass.model.nodes import TierReport as TierReport
from bellglass.model.pools import Pool as Pool
from bellglass.model.pools import PoolStatus as PoolStatus
from bellglass.model.pools import PutPool as PutPool
from bellglass.model.ports import CreatePortToken as CreatePortToken
from bellglass.model.ports import PortToken as PortToken
from bellglass.model.ports import PublishedPort as PublishedPort
from bellglass.model.ports import PutPort as PutPort
from bellglass.model.projects import ApiKey as ApiKey
from bellglass.model.projects import Limit as Limit
from bellglass.model.projects import Project as Project
from bellglass.model.projects import ProjectLimits as ProjectLimits
from bellglass.model.quarantine import Quarantined as Quarantined
from bellglass.model.sandboxes import CreateSandbox as CreateSandbox
from bellglass.model.sandboxes import InputFile as InputFile
from bellglass.model.sandboxes import Sandbox as Sandbox
from bellglass.model.sandboxes import SandboxSpec as SandboxSpec
from bellglass.model.sandboxes import UpdateSandbox as UpdateSandbox
from bellglass.model.values import DEFAULT_CPUS as DEFAULT_CPUS
from bellglass.model.values import DEFAULT_DISK as DEFAULT_DISK
from bellglass.model.values import DEFAULT_EXEC_TIMEOUT_S as DEFAULT_EXEC_TIMEOUT_S
from bellglass.model.values import DEFAULT_LIFETIME as DEFAULT_LIFETIME
from bellglass.model.values import DEFAULT_MEMORY as DEFAULT_MEMORY
from bellglass.model.values import DEFAULT_PIDS as DEFAULT_PIDS
from bellglass.model.values import MAX_EXEC_TIMEOUT_S as MAX_EXEC_TIMEOUT_S
from bellglass.model.values import MAX_INPUTS_BYTES as MAX_INPUTS_BYTES
from bellglass.model.values import MAX_STDIN_BYTES as MAX_STDIN_BYTES
from bellglass.model.values import MAX_TAG_BYTES as MAX_TAG_BYTES
from bellglass.model.values import MAX_TERMINAL as MAX_TERMINAL
from bellglass.model.values import TIER_ORDER as TIER_ORDER
from bellglass.model.values import State as State
from bellglass.model.values import TerminationReason as TerminationReason
from bellglass.model.values import Tier as Tier
from bellglass.record import Record as Record
from bellglass.times import format_time as format_time
from bellglass.times import now as now
from bellglass.times import parse_time as parse_time
