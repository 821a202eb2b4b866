"""Bounds of the core and of the loop from the operator's settings."""

from conf.defaults import shared_values
from conf.settings import EdgeSettings
from edge.loop.options import HotLimits
from edge.node.limits import EdgeLimits
from edge.routes.publisher_names import check_filters

__all__ = ["edge_limits", "hot_limits"]

NS = 1_000_000_000
CLAIM_GAP_S = 0.003  # batches the claims of a connect storm; well below its waiting times


def edge_limits(settings: EdgeSettings) -> EdgeLimits:
    """Return the bounds of the core."""
    check_filters("edge.publisher_properties", settings.publisher_properties)
    values = shared_values(settings, EdgeLimits)
    return EdgeLimits(**values, claim_gap_s=CLAIM_GAP_S, sticky_shares=settings.shared_subscriptions == "sticky")


def hot_limits(settings: EdgeSettings) -> HotLimits:
    """Return the bounds of the loop."""
    return HotLimits(
        output_high_bytes=settings.output_buffer_bytes_max,
        output_low_bytes=settings.output_buffer_bytes_low,
        lag_after_ns=settings.lagging_after_ms * 1_000_000,
        routes_max=settings.routes_max,
        receive_excess_messages_max=settings.receive_excess_messages_max,
        receive_excess_bytes_max=settings.receive_excess_bytes_max,
        receive_excess_wait_ns=int(settings.receive_excess_wait_s * NS),
        pending_messages_max=settings.pending_messages_max,
        pending_bytes_max=settings.pending_bytes_max,
        outbound_window_max=settings.outbound_window_max,
        outbox_bytes_max=settings.outbox_bytes_max,
        publish_rate_max=settings.publish_rate_max,
        packet_timeout_ns=int(settings.packet_timeout_s * NS),
        packet_rate_min=settings.packet_rate_min,
        read_ahead_bytes_max=settings.read_ahead_bytes_max,
        user_property_bytes_max=settings.user_property_bytes_max,
        user_properties_max=settings.user_properties_max,
        pacing_ns=settings.pacing_us_max * 1000,
    )
