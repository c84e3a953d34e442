/** Lists that the server pages: their rows put together, and the next page when a table wants it. */

import {
  keepPreviousData,
  useInfiniteQuery,
  useMutation,
  useQueryClient,
} from "@tanstack/react-query";
import { useCallback, useMemo } from "react";
import { type FetchClient, required } from "./client";
import { useApi } from "./context";

interface Page<Row> {
  data: Row[];
  has_more?: boolean;
  last_id?: string | null;
}

type Answer<P> = Promise<{ data?: P }>;

export interface Paged<Row, P> {
  rows: Row[];
  /** The newest first page, for what it says of all. */
  first: P | undefined;
  isPending: boolean;
  /** What is shown is of the filters before. */
  isPlaceholder: boolean;
  error: Error | null;
  updatedAt: number;
  refetch: () => void;
  /** What a DataTable takes. */
  more: { hasMore: boolean; isLoadingMore: boolean; onMore: () => void };
}

/** `path` names the query, so that live topics make it old; `filters` are what else it hangs on. */
export function usePaged<Row, P extends Page<Row>>(
  path: string,
  filters: unknown,
  ask: (client: FetchClient, after: string | undefined) => Answer<P & Page<Row>>,
  isEnabled = true,
): Paged<Row, P> {
  const { client } = useApi();
  const found = useInfiniteQuery({
    queryKey: [path, filters],
    enabled: isEnabled,
    initialPageParam: undefined as string | undefined,
    queryFn: async ({ pageParam }) => required((await ask(client, pageParam)).data),
    getNextPageParam: (page) => (page.has_more ? (page.last_id ?? undefined) : undefined),
    placeholderData: keepPreviousData,
  });
  const { data, fetchNextPage } = found;
  const rows = useMemo(() => data?.pages.flatMap((page) => page.data) ?? [], [data]);
  const onMore = useCallback(() => void fetchNextPage(), [fetchNextPage]);
  return {
    rows,
    first: data?.pages[0],
    isPending: found.isPending && isEnabled,
    isPlaceholder: found.isPlaceholderData,
    error: data === undefined ? found.error : null,
    updatedAt: found.dataUpdatedAt,
    refetch: () => void found.refetch(),
    more: { hasMore: found.hasNextPage, isLoadingMore: found.isFetchingNextPage, onMore },
  };
}

/** A change, after which every query of a path with one of `touched` in it is asked again. */
export function useChange<Input, Output>(
  touched: readonly string[],
  change: (client: FetchClient, input: Input) => Answer<Output>,
  onDone?: (output: Output) => void,
) {
  const { client } = useApi();
  const queries = useQueryClient();
  return useMutation({
    mutationFn: async (input: Input) => required((await change(client, input)).data),
    onSuccess: async (output) => {
      onDone?.(output);
      await queries.invalidateQueries({
        predicate: ({ queryKey }) =>
          queryKey.some(
            (part) => typeof part === "string" && touched.some((path) => part.includes(path)),
          ),
      });
    },
  });
}
