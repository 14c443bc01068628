"""The errors a person can cause: each says what was given and what is allowed."""


class DraftscopeError(Exception):
    """Base of all errors whose message is written for the person who caused them."""


class InputError(DraftscopeError):
    """A prompt, option or number outside what is allowed."""


class ModelError(DraftscopeError):
    """A model that is unknown, missing, broken, or of an architecture that cannot be used."""


class FetchError(ModelError):
    """Weights that could not be fetched: no network, no space, an interrupted or altered file."""


class TraceError(DraftscopeError):
    """A file that is not a trace this version can open."""
