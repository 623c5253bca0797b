# Rows of scripts/apps, for it to source: programs of Debian's packages.
# shellcheck shell=bash disable=SC2016,SC2034 # awk programs have their own dollars; the arrays are for scripts/apps

packages=(
  fio ibverbs-utils iperf libfabric-bin libibverbs-dev librdmacm-dev openmpi-bin perftest python3-mpi4py python3-pyverbs
  qperf rdmacm-utils ucx-utils
)

# Rows: name, seconds allowed, how to find the figure in the client's output (an awk program), command. A command that ends in
# "-- peer" is run twice: on host b, and on host a. Words in [] are for the server only, words in {} for the client only, @peer is
# host b's address. "!function" is one of scripts/apps, "@program" one of verbs-c/tests/programs.
rows=()
row() { rows+=("$1|$2|$3|$4"); }
# Rows whose server runs until it is stopped.
declare -A serves_on=()
# What a server says (a regular expression) when clients may come, if neither a socket nor a session with its daemon tells.
declare -A ready=()
# Rows that may fail for reasons of the program's own: how often they are tried.
declare -A attempts_of=()
pingpong='/usec\/iter/ { print $(NF - 1), "us/iter" }'
# Lines of numbers only, from the size on. (Tabs and spaces between them.)
numbers='NF >= 5 && $1 ~ /^[0-9]+$/ && $2 ~ /^[0-9]+$/ && $4 ~ /^[0-9.]+$/'
bandwidth="$numbers"' { size = $1; rate = $4 } END { if (rate) print rate, "MiB/s at", size }'
latency="$numbers"' { if (!size) { size = $1; us = $5 } } END { if (us) print us, "us at", size }'

# Programs of our own, in C, that know nothing of Ferroce.
row memory 60 '/registered/ { print }' '@memory'
row ece 60 '/agree on/ { print }' '@ece'
row ibv_devices 60 '/ferroce/ { print $1, $2 }' 'ibv_devices'
row ibv_devinfo 60 '/PORT_ACTIVE/ { state = $2 } /GID\[/ { gids++ } END { print state, gids, "GIDs" }' 'ibv_devinfo -v'
row ibv_rc_pingpong 60 "$pingpong" 'ibv_rc_pingpong -g 0 -c {@peer} -- peer'
row ibv_rc_pingpong_events 60 "$pingpong" 'ibv_rc_pingpong -g 0 -e {@peer} -- peer'
row ibv_rc_pingpong_new_send 60 "$pingpong" 'ibv_rc_pingpong -g 0 -N -c {@peer} -- peer'
row ibv_rc_pingpong_timestamps 60 "$pingpong" 'ibv_rc_pingpong -g 0 -t {@peer} -- peer'
row ibv_rc_pingpong_large 60 "$pingpong" 'ibv_rc_pingpong -g 0 -s 1000000 -n 100 -m 1024 {@peer} -- peer'
row ibv_srq_pingpong 60 "$pingpong" 'ibv_srq_pingpong -g 0 {@peer} -- peer'
row ibv_xsrq_pingpong 60 '/SRQN/ { ends++ } END { if (ends) print ends, "ends" }' 'ibv_xsrq_pingpong -g 0 -n 100 {@peer} -- peer'
row ibv_xsrq_pingpong_events 60 '/SRQN/ { ends++ } END { if (ends) print ends, "ends" }' 'ibv_xsrq_pingpong -g 0 -e {@peer} -- peer'
row ibv_ud_pingpong 60 "$pingpong" 'ibv_ud_pingpong -g 0 {@peer} -- peer'
row ib_send_bw_ud 60 "$bandwidth" 'ib_send_bw -F -c UD -s 2048 -n 500 {@peer} -- peer'
row ib_send_lat_ud 60 "$latency" 'ib_send_lat -F -c UD -n 500 {@peer} -- peer'
row ibv_uc_pingpong 60 "$pingpong" 'ibv_uc_pingpong -g 0 {@peer} -- peer'
# (perftest measures the clock of the processor anew for each size: on a busy machine that takes seconds.)
for operation in write read send; do
  row "ib_${operation}_bw" 60 "$bandwidth" "ib_${operation}_bw -F -n 1000 {@peer} -- peer"
  row "ib_${operation}_bw_all_sizes" 180 "$bandwidth" "ib_${operation}_bw -F -a -n 100 {@peer} -- peer"
  row "ib_${operation}_bw_8_qps" 60 "$bandwidth" "ib_${operation}_bw -F -q 8 -n 500 {@peer} -- peer"
  row "ib_${operation}_bw_both_ways" 60 "$bandwidth" "ib_${operation}_bw -F -b -n 500 {@peer} -- peer"
  row "ib_${operation}_lat" 60 "$latency" "ib_${operation}_lat -F -n 1000 {@peer} -- peer"
  row "ib_${operation}_lat_all_sizes" 180 "$latency" "ib_${operation}_lat -F -a -n 20 {@peer} -- peer"
done
row ib_send_bw_events 60 "$bandwidth" 'ib_send_bw -F -e -n 500 {@peer} -- peer'
row ib_send_lat_events 60 "$latency" 'ib_send_lat -F -e -n 500 {@peer} -- peer'
row ib_send_bw_srq 60 "$bandwidth" 'ib_send_bw -F --use-srq -q 4 -n 500 {@peer} -- peer'
row ib_write_lat_inline 60 "$latency" 'ib_write_lat -F -s 64 --inline_size 64 -n 1000 {@peer} -- peer'
for operation in write send; do
  row "ib_${operation}_bw_uc" 60 "$bandwidth" "ib_${operation}_bw -F -c UC -n 500 {@peer} -- peer"
  row "ib_${operation}_lat_uc" 60 "$latency" "ib_${operation}_lat -F -c UC -n 500 {@peer} -- peer"
done
for kind in CMP_AND_SWAP FETCH_AND_ADD; do
  row "ib_atomic_bw_${kind,,}" 60 "$bandwidth" "ib_atomic_bw -F -A $kind -n 500 {@peer} -- peer"
  row "ib_atomic_lat_${kind,,}" 60 "$latency" "ib_atomic_lat -F -A $kind -n 500 {@peer} -- peer"
done

ucx='/^Final:/ { print $3, "us" }'
for transport in ud_verbs rc_verbs,ud_verbs; do
  row "ucx_perftest_${transport%%_*}" 60 "$ucx" \
    "env UCX_TLS=$transport ucx_perftest -t tag_lat -n 500 {@peer} -- peer"
done

# Connections by the connection manager: programs of librdmacm, and perftest with -R.
row rping 60 '/ping data/ { pings++ } END { if (pings) print pings, "pings" }' 'rping [-s] {-c} -v -V -C 20 {-a} {@peer} -- peer'
row rping_sizes 60 '/ping data/ { pings++ } END { if (pings) print pings, "pings" }' 'rping [-s] {-c} -V -v -C 20 -S 60000 {-a} {@peer} -- peer'
row ucmatose 60 '/return status 0/ { print "status 0" }' 'ucmatose -c 10 -C 20 -S 4096 {-s} {@peer} -- peer'
row ucmatose_migrate 60 '/return status 0/ { print "status 0" }' 'ucmatose -c 5 -m {-s} {@peer} -- peer'
row udaddy 60 '/return status 0/ { print "status 0" }' 'udaddy -c 5 -C 20 {-s} {@peer} -- peer'
row rdma_client 60 '/end 0/ { print "end 0" }' '[rdma_server] {rdma_client -s} {@peer} -- peer'
row cmtime 60 '/^connect / { print $NF, "us for a connection" }' 'cmtime -c 100 {-s} {@peer} -- peer'
serves_on[cmtime]=1
row mckey 60 '/return status 0/ { print "status 0" }' '[stdbuf -oL] mckey -m 239.1.1.1 [-b 10.99.0.2] {-b 10.99.0.1} -C 50 {-s} -- peer'
ready[mckey]='receiving data'
row ib_write_bw_cm 60 "$bandwidth" 'ib_write_bw -F -R -n 500 {@peer} -- peer'
row ib_read_bw_cm_8_qps 60 "$bandwidth" 'ib_read_bw -F -R -q 8 -n 200 {@peer} -- peer'
row ib_send_lat_cm 60 "$latency" 'ib_send_lat -F -R -n 500 {@peer} -- peer'
row ib_send_lat_cm_ud 60 "$latency" 'ib_send_lat -F -R -c UD -n 500 {@peer} -- peer'

# Sockets over RDMA. (A server of these listens only at the connection manager; rcopy's serves until it is stopped.)
rstream='/^custom/ { print $7, "Gb/s" }'
row rstream 60 "$rstream" 'rstream -S 100000 -C 50 -I 4 -T v -T b {-s} {@peer} -- peer'
row rstream_nonblocking 60 "$rstream" 'rstream -S 100000 -C 50 -I 4 -T v {-s} {@peer} -- peer'
row rstream_poll 60 "$rstream" 'rstream -S 100000 -C 50 -I 4 -T v -T a {-s} {@peer} -- peer'
row rstream_small 60 '/^custom/ { print $8, "us" }' 'rstream -S 64 -C 1 -I 500 -T v -T b {-s} {@peer} -- peer'
row riostream 60 "$rstream" 'riostream -S 100000 -C 50 -I 4 -T v -T b {-s} {@peer} -- peer'
row riostream_poll 60 "$rstream" 'riostream -S 100000 -C 50 -I 4 -T v -T a {-s} {@peer} -- peer'
row rcopy 60 '/bytes in/ { print $(NF - 1), "Gb/s" }' '[env --chdir=@work/there] {env --chdir=@work/here} rcopy {payload} {@peer} -- peer'
# Datagrams. (Its server serves until it is stopped, by default at the loopback address. A client that has not heard for 1 ms asks again; of two
# answers it takes the first, and sends the second back as its next question, for ever: it must not be held up.)
udpong='/^custom/ { print $(NF - 1), "Gb/s" }'
row udpong 20 "$udpong" 'udpong -S 1000 -C 1000 -T b [-b] [10.99.0.2] {-s} {@peer} -- peer'
row udpong_echo 20 "$udpong" 'udpong -S 64 -C 1000 -T e [-b] [10.99.0.2] {-s} {@peer} -- peer'
for name in udpong udpong_echo; do
  serves_on[$name]=1
  attempts_of[$name]=4
done
# The same for programs that know nothing of RDMA: rdma-core's library takes their sockets to ours.
# (The dynamic linker knows its place of libraries as $LIB.)
preload='env LD_PRELOAD=/usr/$LIB/rsocket/librspreload.so'
row preload_rstream 60 "$rstream" "$preload rstream -T s -T b -S 5000 -C 100 -I 10 -T v {-s} {@peer} -- peer"
row preload_iperf 60 '/bits\/sec/ { print $(NF - 1), $NF }' "$preload iperf [-s] [-P] [1] {-t} {2} {-c} {@peer} -- peer"
serves_on[rcopy]=1

# Programs that bring layers of their own.
qperf='/=/ { print $(NF - 1), $NF }'
row qperf 60 "$qperf" 'qperf {-t} {1} {-cm} {1} {@peer} {rc_lat} {rc_bw} {rc_rdma_write_bw} {rc_rdma_read_bw} -- peer'
serves_on[qperf]=1
fi='$3 ~ /^=/ { print $(NF - 1), "us at", $1 }'
# (When the peer has closed, ofi_rxm drops completions that it has not polled yet, and the program waits for them, or reports them flushed: it
# must not be held up at that moment. It looks for peers that have closed once an interval.)
row fi_pingpong_rxm 30 "$fi" 'env FI_OFI_RXM_CM_PROGRESS_INTERVAL=1000000 fi_pingpong -p verbs;ofi_rxm -e rdm -I 100 -c {@peer} -- peer'
attempts_of[fi_pingpong_rxm]=4
row fi_pingpong_msg 60 "$fi" 'fi_pingpong -p verbs -e msg -I 100 -c {@peer} -- peer'
row fi_pingpong_dgram 60 "$fi" 'fi_pingpong -p verbs -e dgram -I 100 -c {@peer} -- peer'
# (Who writes is the client, whatever its verb.)
fio='/(WRITE|READ): bw=/ { print substr($2, 4) }'
# (Not --verb=send: fio's client sends before the server's receives are posted, with no retries.)
for verb in write read; do
  row "fio_$verb" 60 "$fio" "fio --ioengine=rdma --bs=64k --size=32m --port=7777 [--name=server] [--rw=read] [--iodepth=16] \
{--name=client} {--hostname=@peer} {--verb=$verb} {--rw=write} {--iodepth=4} -- peer"
done
row pyverbs 60 '/are right/ { print $1, "bytes" }' "/usr/bin/python3 -u $PWD/verbs-c/tests/programs/messages.py {@peer} -- peer"
ready[pyverbs]=listening
row mpirun 90 '/^time for/ { print $6 / $3 * 1e6, "us for a round" }' '!mpirun'

# At the end: it gives the interfaces IPv6 addresses.
row rstream_ipv6 60 "$rstream" '!rstream_ipv6'
# And this: for a moment after the link came back, the kernel drops what is sent.
row ibv_asyncwatch 60 '/event_type/ { events = events " " $2 } END { print substr(events, 2) }' '!watch_link'
