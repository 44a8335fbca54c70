"""The one error family of dsacp.

Every message states what was expected, what was found and what to do.
"""


class DsacpError(Exception):
    """Base of every error that dsacp raises on purpose."""


class CapacityError(DsacpError):
    """A batch, bucket or position does not fit its buffer, or a guard word was overwritten (I3)."""


class LayoutError(DsacpError):
    """Sizes, strides, dtypes or configuration values contradict each other."""


class StaleAddressError(DsacpError):
    """A captured address moved, was freed, or belongs to an older generation (I1)."""


class StaleValueError(DsacpError):
    """A field was not rewritten before the replay that reads it (I2)."""


class PaddingError(DsacpError):
    """A row past the real batch is not inert (I4)."""


class AliasError(DsacpError):
    """Two owners share a byte range (I5)."""


class HostSyncError(DsacpError):
    """The hot path waited for the device, or built a device tensor from host data."""


class UnsupportedHostError(DsacpError):
    """The serving engine lacks a hook, or asks for something this package stands aside from."""
