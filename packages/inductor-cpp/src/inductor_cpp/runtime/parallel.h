// Threads: units first .. last of a kernel go to one thread each; little work stays on the calling thread.
extern "C" int omp_get_max_threads(); extern "C" int omp_get_thread_num(); extern "C" int omp_get_num_threads(); extern "C" int omp_in_parallel();
const i64 WORK_PER_THREAD = 16384;
template <class F> INLINE int parallel(i64 units, i64 work, F run) {
  i64 threads = work / WORK_PER_THREAD;
  if (threads > units) threads = units;
  if (threads > 1) { i64 most = omp_in_parallel() ? 1 : omp_get_max_threads(); threads = threads > most ? most : threads; }
  if (threads <= 1) return units > 0 ? run(0, units, false) : 0;
  int failed = 0;   // the largest error of any thread
#pragma omp parallel num_threads((int)threads) reduction(max : failed)
  {
    i64 mine = omp_get_thread_num(), all = omp_get_num_threads();
    failed = run(units * mine / all, units * (mine + 1) / all, true);
  }
  return failed;
}
