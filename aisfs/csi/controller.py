"""The service Controller: volumes for the claims of Kubernetes, as its external-provisioner asks for them."""

from collections.abc import Iterable

from aisfs.csi import csi_pb2
from aisfs.csi.provisioning import Provisioner
from aisfs.csi.volumes import Code, VolumeError

_MODES = csi_pb2.VolumeCapability.AccessMode


class Controller:
    """Makes and removes volumes."""

    def __init__(self) -> None:
        self._provisioner = Provisioner()

    def ControllerGetCapabilities(
        self, request: csi_pb2.ControllerGetCapabilitiesRequest
    ) -> csi_pb2.ControllerGetCapabilitiesResponse:
        """Return which of the optional calls there are. Room is without limit, so nobody need ask for it."""
        kinds = csi_pb2.ControllerServiceCapability.RPC
        rpcs = (kinds.CREATE_DELETE_VOLUME, kinds.SINGLE_NODE_MULTI_WRITER)
        return csi_pb2.ControllerGetCapabilitiesResponse(
            capabilities=[
                csi_pb2.ControllerServiceCapability(rpc=kinds(type=kind)) for kind in rpcs
            ]
        )

    def CreateVolume(self, request: csi_pb2.CreateVolumeRequest) -> csi_pb2.CreateVolumeResponse:
        """Make a volume, unless it is made already."""
        if not request.name or not request.volume_capabilities:
            raise VolumeError(
                Code.INVALID_ARGUMENT, "a call needs a name and the capabilities of the volume"
            )
        if wrong := _unfit(request.volume_capabilities):
            raise VolumeError(Code.INVALID_ARGUMENT, wrong)
        if request.HasField("volume_content_source"):
            raise VolumeError(
                Code.INVALID_ARGUMENT,
                "a new volume is empty: snapshots and clones are not offered; `ais bucket cp` copies in the cluster",
            )
        size, most = request.capacity_range.required_bytes, request.capacity_range.limit_bytes
        if size < 0 or most < 0 or 0 < most < size:
            raise VolumeError(Code.OUT_OF_RANGE, "the size of the volume contradicts itself")
        made = self._provisioner.create(request.name, size, request.parameters, request.secrets)
        volume = csi_pb2.Volume(volume_id=made.id, capacity_bytes=size, volume_context=made.context)
        return csi_pb2.CreateVolumeResponse(volume=volume)

    def DeleteVolume(self, request: csi_pb2.DeleteVolumeRequest) -> csi_pb2.DeleteVolumeResponse:
        """Remove a volume that was made here; nothing to do if there is none."""
        if not request.volume_id:
            raise VolumeError(Code.INVALID_ARGUMENT, "a call needs a volume id")
        self._provisioner.delete(request.volume_id, request.secrets)
        return csi_pb2.DeleteVolumeResponse()

    def ValidateVolumeCapabilities(
        self, request: csi_pb2.ValidateVolumeCapabilitiesRequest
    ) -> csi_pb2.ValidateVolumeCapabilitiesResponse:
        """Return whether a volume can be used so."""
        if not request.volume_id or not request.volume_capabilities:
            raise VolumeError(Code.INVALID_ARGUMENT, "a call needs a volume id and capabilities")
        made = self._provisioner.find(request.volume_id, request.secrets)
        if made is None:
            raise VolumeError(Code.NOT_FOUND, f"{request.volume_id}: no volume that was made here")
        context = dict(request.volume_context)
        wrong = _unfit(request.volume_capabilities)
        if not wrong and context and made.context.items() - context.items():
            wrong = "the volume was made with other attributes"
        answer = csi_pb2.ValidateVolumeCapabilitiesResponse
        if wrong:
            return answer(message=wrong)
        confirmed = answer.Confirmed(
            volume_context=context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return answer(confirmed=confirmed)


def _unfit(capabilities: Iterable[csi_pb2.VolumeCapability]) -> str:
    """Return why a volume cannot be used so; empty if it can. All modes hold as far as Kubernetes sees to them."""
    for each in capabilities:
        if not each.HasField("mount"):
            return "a volume of aisfs is a file system, no block device"
        if each.access_mode.mode == _MODES.UNKNOWN:
            return "an unknown access mode"
    return ""
