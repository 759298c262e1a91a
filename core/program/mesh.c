/* The mesh: ranks as coordinates along named axes, the outermost axis varying slowest. */
#include "core/program/program.h"

struct hd__mesh hd__mesh_make(const int32_t size[HD_AXIS_COUNT])
{
    struct hd__mesh mesh = {.ranks = 1};
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++) {
        mesh.size[a] = size[a];
        mesh.ranks *= size[a];
    }
    return mesh;
}

void hd__mesh_coord(const struct hd__mesh *mesh, int32_t rank, int32_t coord[HD_AXIS_COUNT])
{
    for (int32_t a = HD_AXIS_COUNT - 1; a >= 0; a--) {
        coord[a] = rank % mesh->size[a];
        rank /= mesh->size[a];
    }
}

int32_t hd__mesh_rank(const struct hd__mesh *mesh, const int32_t coord[HD_AXIS_COUNT])
{
    int32_t rank = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        rank = rank * mesh->size[a] + coord[a];
    return rank;
}

uint32_t hd__mesh_axes(const struct hd__mesh *mesh)
{
    uint32_t axes = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (mesh->size[a] > 1)
            axes |= HD_AXIS_BIT(a);
    return axes;
}

uint32_t hd__mesh_live(const struct hd__mesh *mesh)
{
    return hd__mesh_axes(mesh) & ~HD_AXIS_BIT(HD_AXIS_PP);
}

int64_t hd__mesh_ways(const struct hd__mesh *mesh, uint32_t axes)
{
    int64_t ways = 1;
    for (uint32_t rest = axes & (HD_AXIS_BIT(HD_AXIS_COUNT) - 1); rest; rest &= rest - 1)
        ways *= mesh->size[__builtin_ctz(rest)];
    return ways;
}

int32_t hd__mesh_group(const struct hd__mesh *mesh, int32_t rank, uint32_t axes, uint64_t members, int32_t *ranks)
{
    int32_t coord[HD_AXIS_COUNT], n = 0;
    int64_t combinations = hd__mesh_ways(mesh, axes);
    hd__mesh_coord(mesh, rank, coord);
    for (int64_t c = 0; c < combinations; c++) {
        int64_t rest = c;
        int32_t wanted = 1;
        for (int32_t a = HD_AXIS_COUNT - 1; a >= 0; a--) {
            if (!(axes & HD_AXIS_BIT(a)))
                continue;
            coord[a] = (int32_t)(rest % mesh->size[a]);
            rest /= mesh->size[a];
            wanted &= !members || (members >> coord[a] & 1);
        }
        if (wanted)
            ranks[n++] = hd__mesh_rank(mesh, coord);
    }
    return n;
}

char *hd__axes_text(uint32_t axes, char out[64])
{
    size_t n = 0;
    out[0] = 0;
    for (int32_t a = 0; a < HD_AXIS_COUNT; a++)
        if (axes & HD_AXIS_BIT(a))
            n += (size_t)snprintf(out + n, 64 - n, "%s%s", n ? "." : "", hd__axis_name(a));
    return out;
}
