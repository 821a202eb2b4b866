"""The part of a reload that reads URLs of login servers again from the files of settings (``file:PATH``)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from conf.edge_settings import ListenerSettings
from conf.url_settings import Url
from edge.login.bounded_http import UrlSetting, server_url
from wire.node.reload_parts import changed_files, secret_marks

__all__ = ["ServerUrls"]

Loaded = tuple[dict[tuple[UrlSetting, str], Url], dict[str, str]]  # by setting and listener; marks of files


class ServerUrls:
    """URLs of one edge.

    Args:
        listeners: Of the edge.
        replace: By setting: called with the name of a listener and its new URL.

    Raises:
        UserError: A file is unusable.
    """

    settings: Sequence[str] = ()  # a setting with another URL or file is read at the start only

    def __init__(
        self, listeners: Sequence[ListenerSettings], replace: Mapping[UrlSetting, Callable[[str, Url], None]]
    ) -> None:
        self._replace = replace
        self._held = self._read(listeners)

    def load(self, config: Any) -> Loaded:
        """Read the files.

        Raises:
            UserError: One is unusable.
        """
        return self._read(config.edge.listeners)

    def _read(self, listeners: Sequence[ListenerSettings]) -> Loaded:
        urls: dict[tuple[UrlSetting, str], Url] = {}
        marks: dict[str, str] = {}
        for listener in listeners:
            for setting in self._replace:
                path = getattr(listener, setting).file
                if path is not None:
                    marks |= secret_marks([path])
                    urls[setting, listener.name] = server_url(listener, setting)
        return urls, marks

    def current(self) -> Loaded:
        """Return the URLs in force."""
        return self._held

    def difference(self, loaded: Loaded) -> list[str]:
        """Return the files with changed content."""
        return changed_files(self._held[1], loaded[1])

    def put(self, loaded: Loaded) -> None:
        """Apply these URLs."""
        for (setting, listener), url in loaded[0].items():
            if url != self._held[0][setting, listener]:
                self._replace[setting](listener, url)
        self._held = loaded
