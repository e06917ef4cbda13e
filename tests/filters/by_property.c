/* Lets a message through if it has the property region with the value eu. Built without a C library:
 *
 * clang --target=wasm32 -nostdlib -O2 -Wl,--no-entry -Wl,--export=raftmq_allocate -Wl,--export=raftmq_filter \
 *     -o by_property.wasm by_property.c
 */

static const char wanted[] = "region\001eu\002";
static unsigned char room[256 * 1024];

void *raftmq_allocate(unsigned size) { return size <= sizeof room ? room : 0; }

int raftmq_filter(const char *properties, int size, const unsigned char *body, int body_size) {
    int at = 0, length = sizeof wanted - 1;
    while (at + length <= size) {
        int same = 0;
        while (same < length && properties[at + same] == wanted[same]) same++;
        if (same == length) return 1;
        while (at < size && properties[at++] != '\002') continue;
    }
    return 0;
}
